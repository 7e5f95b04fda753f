package leasehold;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/**
 * What {@link Peer} does with permits that have no lease.
 *
 * <pre>
 * semaphore NAME set N                sets how many there are, if not set yet    true | false
 * semaphore NAME available                                                       a number
 * semaphore NAME acquire N            waits                                      acquired
 * semaphore NAME try N WAIT           waits so long                              true | false
 * semaphore NAME release N                                                       released
 * semaphore NAME add N                                                           added
 * semaphore NAME drain                                                           a number
 * semaphore NAME out KEY THREADS TIMES                                           counted MOST
 *     each thread takes one permit or two, so many times, and counts at the key how many are out, at most MOST
 * semaphore NAME count FILE THREADS TIMES                                        counted
 *     each thread adds one to the number in the file, so many times, with a permit in hand
 * </pre>
 */
final class Semaphores {
  static String obey(RedissonClient redisson, String[] words) throws Exception {
    RSemaphore semaphore = redisson.getSemaphore(words[1]);
    switch (words[2]) {
      case "set":
        return "" + semaphore.trySetPermits(Integer.parseInt(words[3]));
      case "available":
        return "" + semaphore.availablePermits();
      case "acquire":
        semaphore.acquire(Integer.parseInt(words[3]));
        return "acquired";
      case "try":
        return ""
            + semaphore.tryAcquire(
                Integer.parseInt(words[3]), Long.parseLong(words[4]), TimeUnit.MILLISECONDS);
      case "release":
        semaphore.release(Integer.parseInt(words[3]));
        return "released";
      case "add":
        semaphore.addPermits(Integer.parseInt(words[3]));
        return "added";
      case "drain":
        return "" + semaphore.drainPermits();
      case "out":
        RAtomicLong out = redisson.getAtomicLong(words[3]);
        AtomicLong most = new AtomicLong();
        String failed =
            inThreads(
                Integer.parseInt(words[4]),
                Integer.parseInt(words[5]),
                n -> {
                  int permits = 1 + n % 2;
                  semaphore.acquire(permits);
                  most.accumulateAndGet(out.addAndGet(permits), Math::max);
                  out.addAndGet(-permits);
                  semaphore.release(permits);
                });
        return failed == null ? "counted " + most : failed;
      case "count":
        Path file = Path.of(words[3]);
        failed =
            inThreads(
                Integer.parseInt(words[4]),
                Integer.parseInt(words[5]),
                n -> {
                  semaphore.acquire();
                  try {
                    long number = Long.parseLong(Files.readString(file));
                    Thread.sleep(1);
                    Files.writeString(file, Long.toString(number + 1));
                  } finally {
                    semaphore.release();
                  }
                });
        return failed == null ? "counted" : failed;
      default:
        return "failed: there is no order semaphore " + words[2];
    }
  }

  /** One turn of a thread. */
  private interface Turn {
    void take(int number) throws Exception;
  }

  /** Null, if all went well. */
  private static String inThreads(int threads, int times, Turn turn) throws InterruptedException {
    List<Thread> running = new ArrayList<>();
    List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
    for (int i = 0; i < threads; i++) {
      Thread thread =
          new Thread(
              () -> {
                for (int n = 0; n < times; n++) {
                  try {
                    turn.take(n);
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
    return failures.isEmpty() ? null : "failed: " + failures;
  }

  private Semaphores() {}
}
