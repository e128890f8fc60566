import java.io.BufferedReader;
import java.io.InputStreamReader;
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
 * <p>A line on stdin names a file of batches to read, or the number of times to decode it. A line on
 * stdout answers with the file's size, or with the number of records in it.
 */
public final class KafkaDecode {
    private static long kept;

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        BufferSupplier buffers = BufferSupplier.create();
        byte[] bytes = new byte[0];
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            if (line.startsWith("/")) {
                bytes = Files.readAllBytes(Path.of(line));
                System.out.println(bytes.length);
                continue;
            }
            long count = 0;
            for (int left = Integer.parseInt(line); left > 0; left--) {
                count = decode(ByteBuffer.wrap(bytes), buffers);
            }
            System.out.println(count);
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
                    // The JIT may remove work with an unused result.
                    kept += record.offset() + record.timestamp() + key.length + value.length;
                    count++;
                }
            }
        }
        return count;
    }
}
