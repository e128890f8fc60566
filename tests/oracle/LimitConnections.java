import com.yammer.metrics.core.Meter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.util.Properties;
import java.util.function.Supplier;
import kafka.network.ConnectionQuotas;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.utils.Time;

/**
 * Gives Kafka's ConnectionQuotas connections that come and go at given times.
 *
 * <p>Arguments: the listeners. stdin has the properties of the broker, an empty line, and the events,
 * each with its time in ms. "TIME turn LISTENER" counts a connection in the rates, and prints its
 * throttle time in ms. "TIME enter LISTENER" prints whether there is room for a connection, and adds it
 * if so. "TIME leave LISTENER" removes one. "TIME excess LISTENER" prints whether one must be closed.
 */
public final class LimitConnections {
    private static final class GivenTime implements Time {
        private long nowMs;

        public long milliseconds() {
            return nowMs;
        }

        public long nanoseconds() {
            return nowMs * 1_000_000;
        }

        public void sleep(long ms) { }

        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) { }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        Properties properties = new Properties();
        for (String line = input.readLine(); !line.isEmpty(); line = input.readLine()) {
            String[] pair = line.split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        KafkaConfig config = KafkaConfig.fromProps(properties, false);
        GivenTime time = new GivenTime();
        ConnectionQuotas quotas = new ConnectionQuotas(config, time, new Metrics(time));
        for (String name : args) {
            quotas.addListener(config, new ListenerName(name));
        }
        Method turn = found("recordConnectionAndGetThrottleTimeMs");
        Method hasRoom = found("connectionSlotAvailable");
        InetAddress address = InetAddress.getLoopbackAddress();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split(" ");
            time.nowMs = Long.parseLong(fields[0]);
            ListenerName listener = new ListenerName(fields[2]);
            switch (fields[1]) {
                case "turn" -> System.out.println("= " + turn.invoke(quotas, listener, time.nowMs));
                case "enter" -> {
                    boolean isRoom = (boolean) hasRoom.invoke(quotas, listener);
                    if (isRoom) {
                        quotas.inc(listener, address, (Meter) null);
                    }
                    System.out.println("= " + isRoom);
                }
                case "leave" -> quotas.dec(listener, address);
                case "excess" -> System.out.println("= " + quotas.maxConnectionsExceeded(listener));
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static Method found(String name) {
        for (Method method : ConnectionQuotas.class.getDeclaredMethods()) {
            if (method.getName().endsWith(name)) {
                method.setAccessible(true);
                return method;
            }
        }
        throw new IllegalStateException(name);
    }
}
