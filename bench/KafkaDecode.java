import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.Utils;

/**
 * Decodes batches with the Java client's classes, as its consumer does for a listener that takes bytes:
 * CRC checked, then offset, timestamp, key and value of each record, the latter two as arrays.
 *
 * <p>A line on stdin names a file of batches; a line on stdout tells the records and the CPU-seconds of
 * the thread.
 */
public final class KafkaDecode {
    private static long kept;

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        BufferSupplier buffers = BufferSupplier.create();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(Path.of(line)));
            long cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
            long count = decode(bytes, buffers);
            double seconds =
                (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpu) / 1e9;
            System.out.printf("%d %.9f%n", count, seconds);
        }
    }

    private static long decode(ByteBuffer bytes, BufferSupplier buffers) {
        long count = 0;
        for (RecordBatch batch : MemoryRecords.readableRecords(bytes).batches()) {
            batch.ensureValid();
            try (CloseableIterator<Record> records = batch.streamingIterator(buffers)) {
                while (records.hasNext()) {
                    Record record = records.next();
                    byte[] key = Utils.toNullableArray(record.key());
                    byte[] value = Utils.toNullableArray(record.value());
                    // What is not used might not be done.
                    kept += record.offset() + record.timestamp() + key.length + value.length;
                    count++;
                }
            }
        }
        return count;
    }
}
