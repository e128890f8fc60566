import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.function.Supplier;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Prints the logs of a directory that Kafka's cleaner would clean, and their sections, filthiest first.
 *
 * <p>Arguments: the log directory, with its cleaner-offset-checkpoint, and the time. Each line of stdin is a log: topic, log start offset, min.cleanable.dirty.ratio,
 * min.compaction.lag.ms, max.compaction.lag.ms. Each line of stdout: topic, first dirty offset,
 * first uncleanable offset, clean bytes, cleanable bytes.
 */
public final class ChooseLogs {
    public static void main(String[] args) throws Exception {
        File logDir = new File(args[0]);
        Time time = new StoppedTime(Long.parseLong(args[1]));
        ConcurrentMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            UnifiedLog log = open(logDir, line.split(" "), time);
            logs.put(log.topicPartition(), log);
        }
        LogCleanerManager manager =
            new LogCleanerManager(List.of(logDir), logs, new LogDirFailureChannel(1));
        while (true) {
            PreCleanStats stats = new PreCleanStats();
            Optional<LogToClean> chosen = manager.grabFilthiestCompactedLog(time, stats);
            if (chosen.isEmpty()) {
                return;
            }
            LogToClean log = chosen.get();
            System.out.printf(
                "%s %d %d %d %d%n",
                log.topicPartition().topic(), log.firstDirtyOffset(), log.firstUncleanableOffset(),
                log.cleanBytes(), log.cleanableBytes());
        }
    }

    private static UnifiedLog open(File logDir, String[] fields, Time time) throws Exception {
        LogConfig config =
            new LogConfig(
                Map.of(
                    "cleanup.policy", "compact",
                    "min.cleanable.dirty.ratio", fields[2],
                    "min.compaction.lag.ms", fields[3],
                    "max.compaction.lag.ms", fields[4]));
        UnifiedLog log =
            UnifiedLog.create(
                new File(logDir, fields[0] + "-0"), config, Long.parseLong(fields[1]),
                Long.MAX_VALUE, new KafkaScheduler(1), new BrokerTopicStats(), time, 60_000,
                new ProducerStateManagerConfig(Integer.MAX_VALUE, false), 600_000,
                new LogDirFailureChannel(1), true, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        return log;
    }

    private record StoppedTime(long milliseconds) implements Time {
        public long nanoseconds() {
            return milliseconds * 1_000_000;
        }

        public void sleep(long ms) { }

        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) { }
    }
}
