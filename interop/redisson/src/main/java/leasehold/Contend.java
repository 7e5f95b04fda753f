package leasehold;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RLock;

/** Threads that take a lock again and again for a while. */
final class Contend {
  private Contend() {}

  /**
   * Each thread locks, holds for so many milliseconds (0: not at all), unlocks, and so on. Answers with the number of holds and the
   * longest wait in microseconds.
   */
  static String run(RLock lock, int threads, long heldMillis, long millis) throws Exception {
    long end = System.nanoTime() + millis * 1_000_000;
    AtomicLong holds = new AtomicLong();
    AtomicLong longest = new AtomicLong();
    List<Thread> running = new ArrayList<>();
    for (int i = 0; i < threads; i++) {
      Thread thread =
          new Thread(
              () -> {
                while (System.nanoTime() < end) {
                  long asked = System.nanoTime();
                  lock.lock();
                  longest.accumulateAndGet(System.nanoTime() - asked, Math::max);
                  holds.incrementAndGet();
                  try {
                    if (heldMillis > 0) {
                      Thread.sleep(heldMillis);
                    }
                  } catch (InterruptedException stopped) {
                    return;
                  } finally {
                    lock.unlock();
                  }
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
}
