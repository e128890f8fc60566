import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/**
 * A sink that is exactly-once in the way of Connect's sinks: it keeps the offsets beside the data, as one
 * line "OFFSET VALUE" for each record, and continues after the last of them. "file" names the file; the
 * number of the partition is appended.
 */
public final class ExactSink extends SinkConnector {
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> settings) {
        this.settings = settings;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return Lines.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int maximum) {
        return List.of(settings);
    }

    @Override
    public void stop() {
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef().define(
            "file", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "where the lines go");
    }

    @Override
    public String version() {
        return "1";
    }

    public static final class Lines extends SinkTask {
        private String file;

        @Override
        public void start(Map<String, String> settings) {
            file = settings.get("file");
        }

        @Override
        public void open(Collection<TopicPartition> partitions) {
            for (TopicPartition partition : partitions) {
                context.offset(partition, nextOffset(path(partition.partition())));
            }
        }

        private Path path(int partition) {
            return Path.of(file + "-" + partition);
        }

        private static long nextOffset(Path path) {
            try {
                List<String> lines = Files.exists(path) ? Files.readAllLines(path) : List.of();
                return lines.isEmpty()
                    ? 0 : Long.parseLong(lines.get(lines.size() - 1).split(" ")[0]) + 1;
            } catch (IOException error) {
                throw new ConnectException(error);
            }
        }

        @Override
        public void put(Collection<SinkRecord> records) {
            for (SinkRecord record : records) {
                String line = record.kafkaOffset() + " " + record.value() + "\n";
                try {
                    Files.write(path(record.kafkaPartition()),
                        line.getBytes(StandardCharsets.UTF_8),
                        StandardOpenOption.CREATE, StandardOpenOption.APPEND);
                } catch (IOException error) {
                    throw new ConnectException(error);
                }
            }
        }

        @Override
        public void stop() {
        }

        @Override
        public String version() {
            return "1";
        }
    }
}
