import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * RocketMQ's client of 5.x at a proxy: "send TOPIC TAG BODY ...", "receive GROUP TOPIC EXPRESSION COUNT SECONDS" (invisible for
 * so long) with the answer BODY/TIMES ..., "ack BODY ...", "change BODY SECONDS", "group TOPIC GROUP BODY ..." (in order),
 * "transact TOPIC commit|rollback BODY ...", "later TOPIC SECONDS BODY ..." (delivered then).
 */
public final class Pops {
    private static final Map<String, MessageView> HELD = new HashMap<>();
    private static final Map<String, SimpleConsumer> CONSUMERS = new HashMap<>();
    private static final Map<String, SimpleConsumer> OWNERS = new HashMap<>();
    private static final Map<String, Producer> PRODUCERS = new HashMap<>();
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;

    private Pops() {
    }

    private static SimpleConsumer consumer(String group, String topic, String expression) throws Exception {
        String key = group + "/" + topic;
        if (!CONSUMERS.containsKey(key)) {
            CONSUMERS.put(key, PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression(expression)))
                .build());
        }
        return CONSUMERS.get(key);
    }

    private static String send(String[] words) throws Exception {
        if (!PRODUCERS.containsKey(words[1])) {
            PRODUCERS.put(words[1], PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics(words[1]).build());
        }
        for (int at = 3; at < words.length; at++) {
            PRODUCERS.get(words[1]).send(PROVIDER.newMessageBuilder().setTopic(words[1]).setTag(words[2])
                .setKeys(words[at]).setBody(words[at].getBytes(StandardCharsets.UTF_8)).build());
        }
        return "sent " + (words.length - 3);
    }

    private static String group(String[] words) throws Exception {
        if (!PRODUCERS.containsKey(words[1])) {
            PRODUCERS.put(words[1], PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics(words[1]).build());
        }
        for (int at = 3; at < words.length; at++) {
            PRODUCERS.get(words[1]).send(PROVIDER.newMessageBuilder().setTopic(words[1]).setMessageGroup(words[2])
                .setKeys(words[at]).setBody(words[at].getBytes(StandardCharsets.UTF_8)).build());
        }
        return "sent " + (words.length - 3);
    }

    private static String later(String[] words) throws Exception {
        if (!PRODUCERS.containsKey(words[1])) {
            PRODUCERS.put(words[1], PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics(words[1]).build());
        }
        for (int at = 3; at < words.length; at++) {
            PRODUCERS.get(words[1]).send(PROVIDER.newMessageBuilder().setTopic(words[1])
                .setDeliveryTimestamp(System.currentTimeMillis() + 1000L * Integer.parseInt(words[2]))
                .setKeys(words[at]).setBody(words[at].getBytes(StandardCharsets.UTF_8)).build());
        }
        return "sent " + (words.length - 3);
    }

    private static String transact(String[] words) throws Exception {
        if (!PRODUCERS.containsKey(words[1])) {
            PRODUCERS.put(words[1], PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics(words[1]).setTransactionChecker(view -> TransactionResolution.UNKNOWN).build());
        }
        Producer producer = PRODUCERS.get(words[1]);
        for (int at = 3; at < words.length; at++) {
            Transaction transaction = producer.beginTransaction();
            producer.send(PROVIDER.newMessageBuilder().setTopic(words[1]).setKeys(words[at])
                .setBody(words[at].getBytes(StandardCharsets.UTF_8)).build(), transaction);
            if (words[2].equals("commit")) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
        }
        return "sent " + (words.length - 3);
    }

    private static String receive(String[] words) throws Exception {
        SimpleConsumer consumer = consumer(words[1], words[2], words[3]);
        List<MessageView> views =
            consumer.receive(Integer.parseInt(words[4]), Duration.ofSeconds(Integer.parseInt(words[5])));
        StringBuilder said = new StringBuilder("received");
        for (MessageView view : views) {
            ByteBuffer data = view.getBody().duplicate();
            byte[] bytes = new byte[data.remaining()];
            data.get(bytes);
            String body = new String(bytes, StandardCharsets.UTF_8);
            HELD.put(body, view);
            OWNERS.put(body, consumer);
            said.append(' ').append(body).append('/').append(view.getDeliveryAttempt());
        }
        return said.toString();
    }

    private static String done(String[] words) throws Exception {
        switch (words[0]) {
            case "send":
                return send(words);
            case "group":
                return group(words);
            case "transact":
                return transact(words);
            case "later":
                return later(words);
            case "receive":
                return receive(words);
            case "ack":
                for (int at = 1; at < words.length; at++) {
                    OWNERS.get(words[at]).ack(HELD.get(words[at]));
                }
                return "acknowledged";
            case "change":
                OWNERS.get(words[1]).changeInvisibleDuration(
                    HELD.get(words[1]), Duration.ofSeconds(Integer.parseInt(words[2])));
                return "changed";
            default:
                return "failed: no command " + words[0];
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String said;
            try {
                said = done(line.split(" "));
            } catch (Throwable error) {
                error.printStackTrace();
                said = "failed: " + error;
            }
            answers.println(said.replace('\n', ' '));
            answers.flush();
        }
        System.exit(0);
    }
}
