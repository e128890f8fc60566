import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;

/** For each line, a text in base64: its entries, `key:value` in base64 with the value trimmed, or `refused`. */
public final class LoadProperties {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String text = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            Properties properties = new Properties();
            StringBuilder shown = new StringBuilder();
            try {
                properties.load(new StringReader(text));
                for (String name : properties.stringPropertyNames()) {
                    shown.append(encoded(name)).append(':').append(encoded(properties.getProperty(name).trim())).append(' ');
                }
            } catch (IllegalArgumentException error) {
                shown.append("refused");
            }
            System.out.println(shown.toString().trim());
        }
    }

    private static String encoded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
