import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;
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
 * Runs rounds of Kafka's cleaner on closed logs, one for each line of stdin: directory, first dirty
 * offset, first uncleanable offset, time, slots of the offset map, size of an I/O buffer,
 * delete.retention.ms, segment size, segment.index.bytes, index.interval.bytes. Answers with a line
 * each: end offset, map messages read, bytes read, messages read, invalid messages, bytes written,
 * messages written; or "failed" and the exception.
 */
public final class CleanLogs {
    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                System.out.println(clean(line.split(" ")));
            } catch (Exception | AssertionError error) {
                System.out.println("failed " + error);
            }
            System.out.flush();
        }
    }

    private static String clean(String[] fields) throws Exception {
        long now = Long.parseLong(fields[3]);
        int bufferSize = Integer.parseInt(fields[5]);
        LogConfig config =
            new LogConfig(
                Map.of(
                    "cleanup.policy", "compact",
                    "delete.retention.ms", fields[6],
                    "internal.segment.bytes", fields[7],
                    "segment.index.bytes", fields[8],
                    "index.interval.bytes", fields[9]));
        UnifiedLog log =
            UnifiedLog.create(
                new File(fields[0]), config, 0L, Long.MAX_VALUE, new KafkaScheduler(1),
                new BrokerTopicStats(), new StoppedTime(now), 60_000,
                new ProducerStateManagerConfig(86_400_000, false), 600_000,
                new LogDirFailureChannel(1), true, Optional.empty());
        try {
            log.updateHighWatermark(log.logEndOffset());
            Cleaner cleaner =
                new Cleaner(
                    0, new SkimpyOffsetMap(24 * Integer.parseInt(fields[4])), bufferSize, bufferSize,
                    0.9, new Throttler(1e15, 1000L, "throttler", "entries", Time.SYSTEM),
                    Time.SYSTEM, topicPartition -> { });
            LogToClean cleanable =
                new LogToClean(log, Long.parseLong(fields[1]), Long.parseLong(fields[2]), false);
            Map.Entry<Long, CleanerStats> cleaned = cleaner.doClean(cleanable, now);
            CleanerStats stats = cleaned.getValue();
            return String.format(
                "%d %d %d %d %d %d %d", cleaned.getKey(), stats.mapMessagesRead(), stats.bytesRead(),
                stats.messagesRead(), stats.invalidMessagesRead(), stats.bytesWritten(),
                stats.messagesWritten());
        } finally {
            log.close();
        }
    }

    private record StoppedTime(long milliseconds) implements Time {
        public long nanoseconds() {
            return milliseconds * 1_000_000;
        }

        public void sleep(long ms) { }

        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) { }
    }
}
