package leasehold;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.redisson.api.RLock;

/**
 * Orders for waiters of a fair lock, each a thread of its own.
 *
 * <pre>
 * fair line NAME FILE LABEL     a thread waits for the lock, and then writes its label behind the others  waits
 * fair served                   when all of them have had it                                              served
 * </pre>
 */
final class Fair {
  private static final List<Thread> LINE = new ArrayList<>();
  private static final List<Throwable> FAILURES = Collections.synchronizedList(new ArrayList<>());

  private Fair() {}

  static String line(RLock lock, Path file, String label) {
    Thread thread =
        new Thread(
            () -> {
              lock.lock();
              try {
                Files.writeString(
                    file, label + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
              } catch (Exception failure) {
                throw new IllegalStateException(failure);
              } finally {
                lock.unlock();
              }
            });
    thread.setUncaughtExceptionHandler((which, failure) -> FAILURES.add(failure));
    thread.start();
    LINE.add(thread);
    return "waits";
  }

  static String served() throws InterruptedException {
    for (Thread thread : LINE) {
      thread.join();
    }
    LINE.clear();
    return FAILURES.isEmpty() ? "served" : "failed: " + FAILURES;
  }
}
