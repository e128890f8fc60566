import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Method;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Set;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.log.remote.metadata.storage.RemotePartitionMetadataStore;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;

/**
 * Folds metadata partitions with Kafka's own classes, as its ConsumerTask does but without a network:
 * a line on stdin names a partition's directory; a line on stdout has records, live segments,
 * seconds of the clock and CPU-seconds of the thread.
 *
 * <p>CRCs are checked, as a consumer checks them.
 */
public final class KafkaMetadataFold {
    private static Method LIST;

    public static void main(String[] args) throws Exception {
        LIST =
            RemotePartitionMetadataStore.class.getDeclaredMethod(
                "listRemoteLogSegments", TopicIdPartition.class);
        LIST.setAccessible(true);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            fold(new File(line));
        }
    }

    private static void fold(File directory) throws Exception {
        File[] files = directory.listFiles((parent, name) -> name.endsWith(".log"));
        Arrays.sort(files, Comparator.comparing(File::getName));
        long started = System.nanoTime();
        long cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
        RemotePartitionMetadataStore store = new RemotePartitionMetadataStore();
        Set<TopicIdPartition> partitions = new HashSet<>();
        long count = 0;
        for (File file : files) {
            MappedByteBuffer bytes = map(file);
            for (RecordBatch batch : MemoryRecords.readableRecords(bytes).batches()) {
                batch.ensureValid();
                for (Record record : batch) {
                    apply(serde.deserialize(Utils.toArray(record.value())), store, partitions);
                    count++;
                }
            }
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        double cpuSeconds =
            (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpu) / 1e9;
        long live = 0;
        for (TopicIdPartition partition : partitions) {
            store.markInitialized(partition);
            Iterator<?> segments = (Iterator<?>) LIST.invoke(store, partition);
            while (segments.hasNext()) {
                segments.next();
                live++;
            }
        }
        System.out.printf("%d %d %.6f %.6f%n", count, live, seconds, cpuSeconds);
    }

    private static MappedByteBuffer map(File file) throws Exception {
        try (FileChannel channel = FileChannel.open(file.toPath(), StandardOpenOption.READ)) {
            return channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
        }
    }

    private static void apply(
            RemoteLogMetadata event,
            RemotePartitionMetadataStore store,
            Set<TopicIdPartition> partitions) {
        TopicIdPartition partition = event.topicIdPartition();
        if (partitions.add(partition)) {
            store.maybeLoadPartition(partition);
        }
        if (event instanceof RemoteLogSegmentMetadata) {
            store.handleRemoteLogSegmentMetadata((RemoteLogSegmentMetadata) event);
        } else {
            store.handleRemoteLogSegmentMetadataUpdate((RemoteLogSegmentMetadataUpdate) event);
        }
    }
}
