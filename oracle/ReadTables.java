import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.spark.sql.SparkSession;

/**
 * Answers queries with a Spark that has the jars of its class path.
 *
 * <p>Arguments: settings of Spark as NAME=VALUE. Each line of stdin is a folder, a tab, and a query;
 * the query's rows become a Parquet file in the folder.
 */
public final class ReadTables {
    public static void main(String[] args) throws Exception {
        SparkSession.Builder builder = SparkSession.builder().master("local[2]");
        for (String each : args) {
            String[] setting = each.split("=", 2);
            builder = builder.config(setting[0], setting[1]);
        }
        SparkSession spark = builder.getOrCreate();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] query = line.split("\t", 2);
            spark.sql(query[1]).coalesce(1).write().parquet(query[0]);
        }
        spark.stop();
    }
}
