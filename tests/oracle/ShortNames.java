import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;

/**
 * Prints the users that Kafka's KerberosShortNamer makes of principals.
 *
 * <p>Argument: the default realm. Each line of stdin has the rules, with tabs between them, a second tab, and a
 * principal; the answer is a line with the user, "none" if no rule makes one, or "invalid" for the rules.
 */
public final class ShortNames {
    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\t\t", 2);
            System.out.println(answer(args[0], List.of(parts[0].split("\t")), parts[1]));
        }
    }

    private static String answer(String realm, List<String> rules, String principal) {
        KerberosShortNamer namer;
        try {
            namer = KerberosShortNamer.fromUnparsedRules(realm, rules);
        } catch (RuntimeException error) {
            return "invalid";
        }
        try {
            return "user " + namer.shortName(KerberosName.parse(principal));
        } catch (Exception error) {
            return "none";
        }
    }
}
