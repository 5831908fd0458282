import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * RocketMQ's own expressions of SQL 92: "EXPRESSION NAME VALUE NAME VALUE ...", all in Base64, is answered by
 * "true", by "false" for any other result, or by "refused" for a text that is no expression.
 */
public final class Filter {
    private Filter() {
    }

    private static String text(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            if (line.equals("stop")) {
                answers.println("stopped");
                break;
            }
            String[] words = line.split(" ", -1);
            Map<String, Object> properties = new HashMap<>();
            for (int at = 1; at + 1 < words.length; at += 2) {
                properties.put(text(words[at]), text(words[at + 1]));
            }
            answers.println(result(text(words[0]), properties));
        }
    }

    private static String result(String text, Map<String, Object> properties) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (Throwable error) {
            return "refused";
        }
        try {
            return String.valueOf(Boolean.TRUE.equals(expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return properties;
                }
            })));
        } catch (Throwable error) {
            return "false";
        }
    }
}
