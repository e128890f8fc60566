import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Cleans logs with Kafka's own cleaner: a line on stdin names a partition's directory, a line on
 * stdout reports the cost of one round over all of its closed segments.
 *
 * <p>Arguments: dedupe buffer bytes, I/O buffer bytes, segment.bytes. One cleaner, and so one
 * offset map, serves all rounds, as in a broker.
 */
public final class KafkaCleaner {
    public static void main(String[] args) throws Exception {
        int dedupeBufferSize = Integer.parseInt(args[0]);
        int ioBufferSize = Integer.parseInt(args[1]);
        LogConfig config =
            new LogConfig(Map.of("cleanup.policy", "compact", "segment.bytes", args[2]));
        Cleaner cleaner =
            new Cleaner(
                0,
                new SkimpyOffsetMap(dedupeBufferSize),
                ioBufferSize / 2,
                config.maxMessageSize(),
                0.9,
                new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM),
                Time.SYSTEM,
                topicPartition -> { });
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            clean(cleaner, config, new File(line));
        }
    }

    private static void clean(Cleaner cleaner, LogConfig config, File directory) throws Exception {
        UnifiedLog log =
            UnifiedLog.create(
                directory, config, 0, 0, new KafkaScheduler(1), new BrokerTopicStats(),
                Time.SYSTEM, 60_000, new ProducerStateManagerConfig(86_400_000, false), 600_000,
                new LogDirFailureChannel(1), true, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        long end = log.activeSegment().baseOffset();
        long started = System.nanoTime();
        CleanerStats stats = cleaner.clean(new LogToClean(log, 0, end, false)).getValue();
        double seconds = (System.nanoTime() - started) / 1e9;
        log.close();
        System.out.printf(
            "{\"seconds\": %f, \"map_seconds\": %f, \"bytes_read\": %d, \"bytes_written\": %d,"
                + " \"records_read\": %d, \"records_written\": %d}%n",
            seconds, stats.elapsedIndexSecs(), stats.bytesRead(), stats.bytesWritten(),
            stats.messagesRead(), stats.messagesWritten());
    }
}
