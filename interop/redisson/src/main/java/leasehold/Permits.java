package leasehold;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;

/**
 * What {@link Peer} does with permits. Leases are in milliseconds; ids are in hex, with commas between them.
 *
 * <pre>
 * permits NAME set N                sets how many there are, if not set yet    true | false
 * permits NAME available                                                       a number
 * permits NAME acquired             how many are out                           a number
 * permits NAME acquire N LEASE      waits                                      ids
 * permits NAME try N WAIT LEASE     waits so long                              ids | none
 * permits NAME release IDS                                                     released
 * permits NAME extend ID LEASE                                                 true | false
 * permits NAME left ID              how long its lease lasts                   a number
 * permits NAME count KEY THREADS TIMES                                         counted MOST
 *     each thread takes one permit or two, so many times, and counts at the key how many are out, at most MOST
 * </pre>
 */
final class Permits {
  static String obey(RedissonClient redisson, String[] words) throws Exception {
    RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(words[1]);
    switch (words[2]) {
      case "set":
        return "" + semaphore.trySetPermits(Integer.parseInt(words[3]));
      case "available":
        return "" + semaphore.availablePermits();
      case "acquired":
        return "" + semaphore.acquiredPermits();
      case "acquire":
        return String.join(",", acquire(semaphore, Integer.parseInt(words[3]), Long.parseLong(words[4])));
      case "try":
        List<String> ids =
            tryAcquire(
                semaphore,
                Integer.parseInt(words[3]),
                Long.parseLong(words[4]),
                Long.parseLong(words[5]));
        return ids == null || ids.isEmpty() ? "none" : String.join(",", ids);
      case "release":
        release(semaphore, List.of(words[3].split(",")));
        return "released";
      case "extend":
        return "" + semaphore.updateLeaseTime(words[3], Long.parseLong(words[4]), TimeUnit.MILLISECONDS);
      case "left":
        return "" + semaphore.getLeaseTime(words[3]);
      case "count":
        return count(
            semaphore,
            redisson.getAtomicLong(words[3]),
            Integer.parseInt(words[4]),
            Integer.parseInt(words[5]));
      default:
        return "failed: there is no order permits " + words[2];
    }
  }

  /** One permit by the way that most take; several by the other. */
  private static List<String> acquire(RPermitExpirableSemaphore semaphore, int permits, long lease)
      throws InterruptedException {
    return permits == 1
        ? List.of(semaphore.acquire(lease, TimeUnit.MILLISECONDS))
        : semaphore.acquire(permits, lease, TimeUnit.MILLISECONDS);
  }

  private static List<String> tryAcquire(
      RPermitExpirableSemaphore semaphore, int permits, long wait, long lease)
      throws InterruptedException {
    if (permits != 1) {
      return semaphore.tryAcquire(permits, wait, lease, TimeUnit.MILLISECONDS);
    }
    String id = semaphore.tryAcquire(wait, lease, TimeUnit.MILLISECONDS);
    return id == null ? List.of() : List.of(id);
  }

  private static void release(RPermitExpirableSemaphore semaphore, List<String> ids) {
    if (ids.size() == 1) {
      semaphore.release(ids.get(0));
    } else {
      semaphore.release(ids);
    }
  }

  private static String count(RPermitExpirableSemaphore semaphore, RAtomicLong out, int threads, int times)
      throws Exception {
    List<Thread> running = new ArrayList<>();
    List<Throwable> failures = new ArrayList<>();
    AtomicLong most = new AtomicLong();
    for (int i = 0; i < threads; i++) {
      Thread thread =
          new Thread(
              () -> {
                for (int n = 0; n < times; n++) {
                  int permits = 1 + n % 2;
                  try {
                    List<String> ids = acquire(semaphore, permits, 30_000);
                    most.accumulateAndGet(out.addAndGet(permits), Math::max);
                    out.addAndGet(-permits);
                    release(semaphore, ids);
                  } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                  }
                }
              });
      thread.setUncaughtExceptionHandler((which, failure) -> failures.add(failure));
      thread.start();
      running.add(thread);
    }
    for (Thread thread : running) {
      thread.join();
    }
    return failures.isEmpty() ? "counted " + most : "failed: " + failures;
  }

  private Permits() {}
}
