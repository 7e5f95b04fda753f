import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.RandomAccessFile;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** A process that locks with Redisson, as it is told on its standard input (compare/README.md). A task is a thread, which owns what it locks. */
public final class Peer {
  private static final Map<String, CountDownLatch> FREES = new ConcurrentHashMap<>();
  private static final ExecutorService TASKS = Executors.newCachedThreadPool();

  /** The holds of a task of {@code work}. */
  private record Done(long inside, List<Long> waits) {}

  public static void main(String[] args) throws Exception {
    Config config = new Config();
    config.useSingleServer().setAddress("redis://" + args[1]);
    if (!args[2].equals("0")) {
      config.setLockWatchdogTimeout(Long.parseLong(args[2]));
    }
    RedissonClient redisson = Redisson.create(config);
    System.out.println(
        "ready\t"
            + Redisson.class.getPackage().getImplementationVersion()
            + "\tlease 30 s, renewed each 10 s; waiters are woken");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    ExecutorService orders = Executors.newSingleThreadExecutor();
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ");
      orders.submit(
          () -> {
            try {
              String answer = obey(redisson, words);
              if (answer != null) {
                System.out.println(answer);
              }
            } catch (Exception failure) {
              System.out.println("failed " + failure);
            }
          });
    }
    // In any case, also while tasks wait for a server that has ended with the runner.
    Runtime.getRuntime().halt(0);
  }

  private static String obey(RedissonClient redisson, String[] words) throws Exception {
    switch (words[0]) {
      case "work":
        return work(redisson, words);
      case "take":
        for (int i = 0; i < Integer.parseInt(words[2]); i++) {
          TASKS.submit(() -> keep(redisson.getLock(words[1]), words[1]));
        }
        return null;
      case "free":
        FREES.remove(words[1]).countDown();
        return null;
      default:
        return "failed: there is no order " + words[0];
    }
  }

  private static long micros() {
    return System.nanoTime() / 1000;
  }

  private static void keep(RLock lock, String name) {
    try {
      lock.lock();
      long at = micros();
      CountDownLatch free = new CountDownLatch(1);
      FREES.put(name, free);
      System.out.println("got " + name + " " + at);
      free.await();
      at = micros();
      lock.unlock();
      System.out.println("freed " + name + " " + at);
    } catch (Exception failure) {
      System.out.println("failed " + failure);
    }
  }

  private static String work(RedissonClient redisson, String[] words) throws Exception {
    int tasks = Integer.parseInt(words[1]);
    int names = Integer.parseInt(words[2]);
    String path = words[5];
    long end = System.nanoTime() + Long.parseLong(words[4]) * 1_000_000;
    List<Future<Done>> running = new ArrayList<>();
    for (int i = 0; i < tasks; i++) {
      String name = words[3] + ":" + i % names;
      running.add(TASKS.submit(() -> until(end, redisson, name, path)));
    }
    long inside = 0;
    List<Long> waits = new ArrayList<>();
    for (Future<Done> task : running) {
      inside += task.get().inside();
      waits.addAll(task.get().waits());
    }
    long[] sorted = waits.stream().mapToLong(wait -> wait).sorted().toArray();
    return "worked " + inside + " " + sorted.length + " " + at(sorted, 50) + " " + at(sorted, 99) + " " + at(sorted, 100);
  }

  private static long at(long[] sorted, int percent) {
    return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length * percent / 100, sorted.length - 1)] / 1000;
  }

  private static Done until(long end, RedissonClient redisson, String name, String path) throws Exception {
    long inside = 0;
    List<Long> waits = new ArrayList<>();
    try (RandomAccessFile file = path.equals("-") ? null : new RandomAccessFile(path, "rw")) {
      for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
        RLock lock = redisson.getLock(name);
        lock.lock();
        waits.add(System.nanoTime() - asked);
        if (file != null) {
          count(file);
        }
        lock.unlock();
        inside += System.nanoTime() <= end ? 1 : 0;
      }
    }
    return new Done(inside, waits);
  }

  /** Adds one to the number in the file. Other threads run between the two halves, so that a holder who is not alone loses a count. */
  private static void count(RandomAccessFile file) throws Exception {
    byte[] digits = new byte[12];
    file.seek(0);
    file.readFully(digits);
    Thread.yield();
    file.seek(0);
    file.write(String.format("%012d", Long.parseLong(new String(digits)) + 1).getBytes());
  }
}
