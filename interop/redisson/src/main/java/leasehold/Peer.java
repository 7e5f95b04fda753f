package leasehold;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.ShardedSubscriptionMode;
import org.redisson.config.SubscriptionMode;

/**
 * A process that locks with Redisson, as it is told on its standard input: a line in, a line out, one after the other
 * and on one thread, which is the owner of what it locks. Ends with its input.
 *
 * <pre>
 * lock NAME              waits, with the watchdog         locked
 * try NAME MS            waits so long                    true | false
 * unlock NAME                                             unlocked
 * force NAME             unlocks it for any holder        true | false
 * locked NAME            whether any holder has it        true | false
 * count NAME FILE THREADS TIMES                           counted
 *     each thread adds one to the number in the file, so many times, under the lock
 * contend KIND NAME THREADS HELD_US MS                    HOLDS LONGEST_WAIT_US, see {@link Contend}
 * permits NAME ...       see {@link Permits}
 * fenced NAME ...        see {@link Fenced}
 * semaphore NAME ...     see {@link Semaphores}
 * latch NAME ...         see {@link Latches}
 * </pre>
 *
 * With {@code read} or {@code write} before it, an order is for that half of the read-write lock of the name:
 *
 * <pre>
 * read lock NAME
 * write count NAME FILE THREADS TIMES
 *     as above, and beside each thread another reads, so often, that the number stays as it is
 * </pre>
 *
 * With {@code spin} before it, an order is for the spin lock of the name; with {@code multi}, for the multi-lock of the
 * names, which are written with commas between them; with {@code fair}, for the fair lock (see also {@link Fair}).
 */
public final class Peer {
  /**
   * Arguments: an address, {@code redis://HOST:PORT/}, {@code redis-sentinel://HOST:PORT,HOST:PORT/?master=NAME} or {@code
   * redis-cluster://HOST:PORT,HOST:PORT}, behind which {@code ?classic} is for channels that are not sharded and {@code ?slave} for
   * subscriptions at replicas, and the watchdog's lease in milliseconds.
   */
  public static void main(String[] args) throws Exception {
    Config config = new Config();
    config.setLockWatchdogTimeout(Long.parseLong(args[1]));
    use(config, args[0]);
    RedissonClient redisson = Redisson.create(config);
    System.out.println("ready");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String answer;
      try {
        answer = obey(redisson, line.split(" "));
      } catch (LinkageError lacking) {
        answer = "failed: this version has no such order: " + lacking.getMessage();
      } catch (Exception failure) {
        answer = "failed: " + failure + "; " + failure.getCause();
      }
      System.out.println(answer);
    }
    redisson.shutdown();
  }

  private static void use(Config config, String address) {
    if (address.startsWith("redis-cluster:")) {
      ClusterServersConfig cluster =
          config
              .useClusterServers()
              .setScanInterval(200)
              .setMasterConnectionMinimumIdleSize(2)
              .setSlaveConnectionMinimumIdleSize(1);
      URI uri = URI.create(address);
      for (String node : uri.getAuthority().split(",")) {
        cluster.addNodeAddress("redis://" + node);
      }
      if ("classic".equals(uri.getQuery())) {
        cluster.setShardedSubscriptionMode(ShardedSubscriptionMode.OFF);
      }
      if ("slave".equals(uri.getQuery())) {
        cluster.setSubscriptionMode(SubscriptionMode.SLAVE);
      }
      return;
    }
    if (!address.startsWith("redis-sentinel:")) {
      config.useSingleServer().setAddress(address).setConnectionMinimumIdleSize(2);
      return;
    }
    URI uri = URI.create(address);
    SentinelServersConfig sentinels =
        config
            .useSentinelServers()
            .setMasterName(uri.getQuery().substring("master=".length()))
            .setScanInterval(200)
            .setMasterConnectionMinimumIdleSize(2)
            .setSlaveConnectionMinimumIdleSize(1);
    for (String sentinel : uri.getAuthority().split(",")) {
      sentinels.addSentinelAddress("redis://" + sentinel);
    }
  }

  private static String obey(RedissonClient redisson, String[] words) throws Exception {
    if (words[0].equals("contend")) {
      return Contend.run(redisson, words);
    }
    if (words[0].equals("permits")) {
      return Permits.obey(redisson, words);
    }
    if (words[0].equals("fenced")) {
      return Fenced.obey(redisson, words);
    }
    if (words[0].equals("fair") && words[1].equals("served")) {
      return Fair.served();
    }
    if (words[0].equals("semaphore")) {
      return Semaphores.obey(redisson, words);
    }
    if (words[0].equals("latch")) {
      return Latches.obey(redisson, words);
    }
    RReadWriteLock both = null;
    RLock lock;
    if (words[0].equals("read") || words[0].equals("write")) {
      both = redisson.getReadWriteLock(words[2]);
      lock = words[0].equals("read") ? both.readLock() : both.writeLock();
      words = Arrays.copyOfRange(words, 1, words.length);
    } else if (words[0].equals("spin")) {
      lock = redisson.getSpinLock(words[2]);
      words = Arrays.copyOfRange(words, 1, words.length);
    } else if (words[0].equals("multi")) {
      RLock[] parts =
          Arrays.stream(words[2].split(",")).map(redisson::getLock).toArray(RLock[]::new);
      lock = redisson.getMultiLock(parts);
      words = Arrays.copyOfRange(words, 1, words.length);
    } else if (words[0].equals("fair")) {
      lock = redisson.getFairLock(words[2]);
      words = Arrays.copyOfRange(words, 1, words.length);
    } else {
      lock = redisson.getLock(words[1]);
    }
    switch (words[0]) {
      case "lock":
        lock.lock();
        return "locked";
      case "try":
        return "" + lock.tryLock(Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
      case "unlock":
        lock.unlock();
        return "unlocked";
      case "force":
        return "" + lock.forceUnlock();
      case "locked":
        return "" + lock.isLocked();
      case "line":
        return Fair.line(lock, Path.of(words[2]), words[3]);
      case "count":
        return count(
            lock,
            both == null ? null : both.readLock(),
            Path.of(words[2]),
            Integer.parseInt(words[3]),
            Integer.parseInt(words[4]));
      default:
        return "failed: there is no order " + words[0];
    }
  }

  /** What is done with the file under a lock. */
  private interface Work {
    void run() throws Exception;
  }

  private static String count(RLock lock, RLock reads, Path file, int threads, int times)
      throws Exception {
    List<Thread> running = new ArrayList<>();
    List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
    for (int i = 0; i < threads; i++) {
      Work add =
          () -> {
            long number = Long.parseLong(Files.readString(file));
            Thread.sleep(1);
            Files.writeString(file, Long.toString(number + 1));
          };
      running.add(thread(lock, times, add, failures));
      if (reads != null) {
        Work look =
            () -> {
              String number = Files.readString(file);
              Thread.sleep(1);
              if (!Files.readString(file).equals(number)) {
                throw new IllegalStateException("the number changed while it was read");
              }
            };
        running.add(thread(reads, times, look, failures));
      }
    }
    for (Thread thread : running) {
      thread.start();
    }
    for (Thread thread : running) {
      thread.join();
    }
    return failures.isEmpty() ? "counted" : "failed: " + failures;
  }

  private static Thread thread(RLock lock, int times, Work work, List<Throwable> failures) {
    Thread thread =
        new Thread(
            () -> {
              for (int n = 0; n < times; n++) {
                lock.lock();
                try {
                  work.run();
                } catch (Exception failure) {
                  throw new IllegalStateException(failure);
                } finally {
                  lock.unlock();
                }
              }
            });
    thread.setUncaughtExceptionHandler((which, failure) -> failures.add(failure));
    return thread;
  }
}
