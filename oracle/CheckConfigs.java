import java.io.FileReader;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.Endpoint;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Lets Kafka parse server.properties files. For each it prints a line with tabs: "accepted", the
 * listeners, the advertised listeners and the listener between brokers; or "refused" and the message.
 * Without a file it prints every key, its type, and its default if it has one.
 */
public final class CheckConfigs {
    public static void main(String[] files) throws Exception {
        if (files.length == 0) {
            printKeys();
        }
        for (String file : files) {
            System.out.println(check(file).replace("\n", " "));
        }
    }

    private static void printKeys() {
        for (ConfigDef.ConfigKey key : AbstractKafkaConfig.CONFIG_DEF.configKeys().values()) {
            boolean has = key.hasDefault() && key.defaultValue != null;
            String text = has ? "\t" + ConfigDef.convertToString(key.defaultValue, key.type) : "";
            System.out.println(key.name + "\t" + key.type + text);
        }
    }

    private static String check(String file) throws Exception {
        Properties properties = new Properties();
        try (FileReader reader = new FileReader(file)) {
            properties.load(reader);
        }
        try {
            KafkaConfig config = KafkaConfig.fromProps(properties, false);
            return "accepted\t" + texts(CollectionConverters.asJava(config.dataPlaneListeners()))
                + "\t" + texts(CollectionConverters.asJava(config.effectiveAdvertisedBrokerListeners()))
                + "\t" + texts(CollectionConverters.asJava(config.controllerListeners()))
                + "\t" + config.interBrokerListenerName().value();
        } catch (Exception error) {
            return "refused\t" + String.valueOf(error.getMessage()).replaceFirst("^requirement failed: ", "");
        }
    }

    private static String texts(List<Endpoint> endpoints) {
        return endpoints.stream()
            .map(each -> each.listener() + ":" + each.securityProtocol() + ":"
                + (each.host() == null ? "" : each.host()) + ":" + each.port())
            .collect(Collectors.joining(" "));
    }
}
