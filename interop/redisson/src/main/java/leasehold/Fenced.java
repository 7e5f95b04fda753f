package leasehold;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RedissonClient;

/**
 * What {@link Peer} does with fenced locks.
 *
 * <pre>
 * fenced NAME lock                      waits, with the watchdog      the token
 * fenced NAME try MS                    waits so long                 the token | none
 * fenced NAME token                     the last one                  a number
 * fenced NAME unlock                                                  unlocked
 * fenced NAME force                     unlocks it for any holder     true | false
 * fenced NAME count FILE THREADS TIMES                                counted
 *     each thread adds one to the first number in the file, so many times, under the lock; the second is the token of
 *     the one before, which must be smaller than its own
 * </pre>
 */
final class Fenced {
  static String obey(RedissonClient redisson, String[] words) throws Exception {
    RFencedLock lock = redisson.getFencedLock(words[1]);
    switch (words[2]) {
      case "lock":
        return "" + lock.lockAndGetToken();
      case "try":
        Long token = lock.tryLockAndGetToken(Long.parseLong(words[3]), TimeUnit.MILLISECONDS);
        return token == null ? "none" : "" + token;
      case "token":
        return "" + lock.getToken();
      case "unlock":
        lock.unlock();
        return "unlocked";
      case "force":
        return "" + lock.forceUnlock();
      case "count":
        return count(lock, Path.of(words[3]), Integer.parseInt(words[4]), Integer.parseInt(words[5]));
      default:
        return "failed: there is no order fenced " + words[2];
    }
  }

  private static String count(RFencedLock lock, Path file, int threads, int times)
      throws InterruptedException {
    List<Thread> running = new ArrayList<>();
    List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
    for (int i = 0; i < threads; i++) {
      Thread thread =
          new Thread(
              () -> {
                for (int n = 0; n < times; n++) {
                  long token = lock.lockAndGetToken();
                  try {
                    String[] before = Files.readString(file).split(" ");
                    if (Long.parseLong(before[1]) >= token) {
                      throw new IllegalStateException(token + " after " + before[1]);
                    }
                    Thread.sleep(1);
                    Files.writeString(file, (Long.parseLong(before[0]) + 1) + " " + token);
                  } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                  } finally {
                    lock.unlock();
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
    return failures.isEmpty() ? "counted" : "failed: " + failures;
  }

  private Fenced() {}
}
