package leasehold;

import java.util.concurrent.TimeUnit;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RedissonClient;

/**
 * What {@link Peer} does with latches.
 *
 * <pre>
 * latch NAME set N          sets the count, if it is not set    true | false
 * latch NAME count                                              a number
 * latch NAME down                                               counted down
 * latch NAME wait MS        waits so long                       true | false, and when it went on (monotonic ns)
 * latch NAME delete                                             true | false
 * </pre>
 */
final class Latches {
  static String obey(RedissonClient redisson, String[] words) throws Exception {
    RCountDownLatch latch = redisson.getCountDownLatch(words[1]);
    switch (words[2]) {
      case "set":
        return "" + latch.trySetCount(Long.parseLong(words[3]));
      case "count":
        return "" + latch.getCount();
      case "down":
        latch.countDown();
        return "counted down";
      case "wait":
        boolean open = latch.await(Long.parseLong(words[3]), TimeUnit.MILLISECONDS);
        return open + " " + System.nanoTime();
      case "delete":
        return "" + latch.delete();
      default:
        return "failed: there is no order latch " + words[2];
    }
  }

  private Latches() {}
}
