import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own producer and consumer, told what to do by lines on standard input; one line of answer for each.
 *
 * Arguments: the name server, the topic. Commands: "send FIRST COUNT SECONDS": messages with these numbers, each
 * tried until it is acknowledged (answer: "sent" and, for each, number/queue/queueOffset/offsetMsgId/uniqueKey);
 * "received COUNT SECONDS": wait until so many different numbers have come (answer: how many have, and how many
 * of them were not what was sent). The end of the input ends the process.
 */
public final class Messages {
    private static final Set<String> RECEIVED = ConcurrentHashMap.newKeySet();
    private static final Set<String> WRONG = ConcurrentHashMap.newKeySet();

    private Messages() {
    }

    public static void main(String[] arguments) throws Exception {
        // Others write to the standard output, too: logging, for one.
        PrintStream answers = System.out;
        System.setOut(System.err);
        String nameServer = arguments[0];
        String topic = arguments[1];
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(nameServer);
        producer.setPollNameServerInterval(1000);
        producer.setSendMsgTimeout(3000);
        producer.setCompressMsgBodyOverHowmuch(2000);
        producer.start();
        DefaultMQPushConsumer consumer = null;
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            if (words[0].equals("send")) {
                int first = Integer.parseInt(words[1]);
                answers.println(send(producer, topic, first, Integer.parseInt(words[2]),
                    System.currentTimeMillis() + 1000L * Integer.parseInt(words[3])));
            } else if (words[0].equals("received")) {
                if (consumer == null) {
                    consumer = consumer(nameServer, topic);
                }
                long deadline = System.currentTimeMillis() + 1000L * Integer.parseInt(words[2]);
                while (RECEIVED.size() < Integer.parseInt(words[1]) && System.currentTimeMillis() < deadline) {
                    Thread.sleep(20);
                }
                answers.println(RECEIVED.size() + " " + WRONG.size());
            } else if (words[0].equals("stop")) {
                answers.println("stopped");
                break;
            } else {
                answers.println("what is " + words[0] + "?");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** What message number N must be, wherever it is seen. */
    static String body(int number) {
        StringBuilder text = new StringBuilder("message " + number + " \u00fcber\n");
        // Every seventh is large enough to be compressed.
        for (int i = 0; i < (number % 7 == 0 ? 400 : 4); i++) {
            text.append("0123456789");
        }
        return text.toString();
    }

    private static String send(DefaultMQProducer producer, String topic, int first, int count, long deadline)
        throws Exception {
        StringBuilder answer = new StringBuilder("sent");
        for (int number = first; number < first + count; number++) {
            Message message = new Message(topic, number % 2 == 0 ? "even" : "odd", "k" + number + " all",
                body(number).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("number", Integer.toString(number));
            SendResult result = null;
            Exception last = null;
            while (result == null || result.getSendStatus() != SendStatus.SEND_OK) {
                if (System.currentTimeMillis() > deadline) {
                    return "failed at " + number + ": " + result + " " + oneLine(last);
                }
                try {
                    result = producer.send(message);
                } catch (Exception e) {
                    last = e;
                    Thread.sleep(100);
                }
            }
            answer.append(' ').append(number).append('/').append(result.getMessageQueue().getQueueId()).append('/')
                .append(result.getQueueOffset()).append('/').append(result.getOffsetMsgId()).append('/')
                .append(result.getMsgId());
        }
        return answer.toString();
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("consumers");
        consumer.setNamesrvAddr(nameServer);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String number = message.getUserProperty("number");
                RECEIVED.add(number);
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                if (!body.equals(body(Integer.parseInt(number)))) {
                    WRONG.add(number);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static String oneLine(Exception exception) {
        return String.valueOf(exception).replace('\n', ' ').replace('\r', ' ');
    }
}
