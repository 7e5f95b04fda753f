package leasehold;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** Threads that take a lock again and again for a while. */
final class Contend {
  private Contend() {}

  /**
   * Each thread takes the lock or the permit, holds it for so many microseconds (0: not at all), gives it back, and so on. Answers with
   * the number of holds and the longest wait in microseconds.
   */
  static String run(RedissonClient redisson, String[] words) throws Exception {
    Supplier<Runnable> take = takes(redisson, words[1], words[2]);
    int threads = Integer.parseInt(words[3]);
    long held = Long.parseLong(words[4]) * 1_000;
    long end = System.nanoTime() + Long.parseLong(words[5]) * 1_000_000;
    AtomicLong holds = new AtomicLong();
    AtomicLong longest = new AtomicLong();
    List<Thread> running = new ArrayList<>();
    for (int i = 0; i < threads; i++) {
      Thread thread =
          new Thread(
              () -> {
                while (System.nanoTime() < end) {
                  long asked = System.nanoTime();
                  Runnable giveBack = take.get();
                  longest.accumulateAndGet(System.nanoTime() - asked, Math::max);
                  holds.incrementAndGet();
                  if (held > 0) {
                    LockSupport.parkNanos(held);
                  }
                  giveBack.run();
                }
              });
      running.add(thread);
      thread.start();
    }
    for (Thread thread : running) {
      thread.join();
    }
    return holds + " " + longest.get() / 1000;
  }

  /** Takes it, and returns what gives it back. */
  private static Supplier<Runnable> takes(RedissonClient redisson, String kind, String name) {
    switch (kind) {
      case "permits":
        RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore(name);
        return () -> {
          try {
            String id = permits.acquire();
            return () -> permits.release(id);
          } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
          }
        };
      case "semaphore":
        RSemaphore semaphore = redisson.getSemaphore(name);
        return () -> {
          try {
            semaphore.acquire();
            return semaphore::release;
          } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
          }
        };
      default:
        RLock lock = lock(redisson, kind, name);
        return () -> {
          lock.lock();
          return lock::unlock;
        };
    }
  }

  private static RLock lock(RedissonClient redisson, String kind, String name) {
    switch (kind) {
      case "fenced":
        return redisson.getFencedLock(name);
      case "write":
        return redisson.getReadWriteLock(name).writeLock();
      case "spin":
        return redisson.getSpinLock(name);
      default:
        return redisson.getLock(name);
    }
  }
}
