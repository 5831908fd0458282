import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's own producer and consumers beside a master and its slaves: what each message was answered is told
 * as it was, nothing is sent twice. Lines on standard input are commands; one line of answer for each.
 *
 * Argument: the name server. Commands: "send TOPIC FIRST COUNT WINDOW DELAYLEVEL": messages with these numbers,
 * so many at a time unanswered; the answer is "sent" and, for each, number/STATUS/queue/queueOffset/offsetMsgId.
 * "batch TOPIC FIRST COUNT": the same, as one batch.
 * "load TOPIC FIRST WINDOW FILE": the same without an end, a line of the file for each that was answered;
 * "quiet": no more of them, answered when all have been, with the number that would be next. "consume TOPIC
 * GROUP TAG": begin to; "received GROUP COUNT SECONDS": wait until so many different numbers have come (answer:
 * how many have, how many were not what was sent, how many came again).
 */
public final class HaClient {
    private static final Map<String, Seen> SEEN = new ConcurrentHashMap<>();
    private static Load load;

    private HaClient() {
    }

    public static void main(String[] arguments) throws Exception {
        // Others write to the standard output, too: logging, for one.
        PrintStream answers = System.out;
        System.setOut(System.err);
        String nameServer = arguments[0];
        DefaultMQProducer producer = new DefaultMQProducer("producers", keys());
        producer.setNamesrvAddr(nameServer);
        producer.setPollNameServerInterval(1000);
        producer.setSendMsgTimeout(10000);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            if (words[0].equals("send")) {
                answers.println(send(producer, words));
            } else if (words[0].equals("batch")) {
                answers.println(batch(producer, words));
            } else if (words[0].equals("load")) {
                load = new Load(producer, words);
                load.start();
                answers.println("ok");
            } else if (words[0].equals("quiet")) {
                answers.println("quiet " + load.quiet());
            } else if (words[0].equals("consume")) {
                consume(nameServer, words[1], words[2], words[3]);
                answers.println("ok");
            } else if (words[0].equals("received")) {
                answers.println(received(words));
            } else if (words[0].equals("stop")) {
                answers.println("stopped");
                break;
            } else {
                answers.println("what is " + words[0] + "?");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** Signs requests with the account of the system properties; null without one. */
    private static RPCHook keys() {
        String key = System.getProperty("access.key");
        return key == null ? null
            : new AclClientRPCHook(new SessionCredentials(key, System.getProperty("secret.key")));
    }

    /** How one message ended: number, status, queue, offset in the queue, the broker's name for it. */
    private interface Ended {
        void ended(int number, String status, SendResult result);
    }

    private static Message message(String topic, int number) {
        Message message = new Message(topic, number % 2 == 0 ? "even" : "odd", "k" + number + " all",
            Messages.body(number).getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", Integer.toString(number));
        return message;
    }

    private static void sendOne(DefaultMQProducer producer, String topic, int number, int level, Ended ended) {
        Message message = message(topic, number);
        if (level > 0) {
            message.setDelayTimeLevel(level);
        }
        try {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    ended.ended(number, result.getSendStatus().name(), result);
                }

                @Override
                public void onException(Throwable error) {
                    ended.ended(number, "FAILED:" + word(error), null);
                }
            });
        } catch (Exception error) {
            ended.ended(number, "FAILED:" + word(error), null);
        }
    }

    private static String line(int number, String status, SendResult result) {
        return number + "/" + status + (result == null ? "/-1/-1/"
            : "/" + result.getMessageQueue().getQueueId() + "/" + result.getQueueOffset() + "/"
                + result.getOffsetMsgId());
    }

    private static String word(Throwable error) {
        return String.valueOf(error).replaceAll("[\\s/]+", "_");
    }

    private static String send(DefaultMQProducer producer, String[] words) throws Exception {
        int first = Integer.parseInt(words[2]);
        int count = Integer.parseInt(words[3]);
        int window = Integer.parseInt(words[4]);
        Semaphore room = new Semaphore(window);
        String[] lines = new String[count];
        for (int number = first; number < first + count; number++) {
            room.acquire();
            sendOne(producer, words[1], number, Integer.parseInt(words[5]), (sent, status, result) -> {
                lines[sent - first] = line(sent, status, result);
                room.release();
            });
        }
        room.acquire(window);
        return "sent " + String.join(" ", lines);
    }

    private static String batch(DefaultMQProducer producer, String[] words) throws Exception {
        int first = Integer.parseInt(words[2]);
        List<Message> messages = new ArrayList<>();
        for (int number = first; number < first + Integer.parseInt(words[3]); number++) {
            messages.add(message(words[1], number));
        }
        SendResult result = producer.send(messages);
        String[] ids = result.getOffsetMsgId().split(",");
        StringBuilder answer = new StringBuilder("sent");
        for (int at = 0; at < ids.length; at++) {
            answer.append(' ').append(first + at).append('/').append(result.getSendStatus()).append('/')
                .append(result.getMessageQueue().getQueueId()).append('/').append(result.getQueueOffset() + at)
                .append('/').append(ids[at]);
        }
        return answer.toString();
    }

    /** Messages without a pause but the one that keeps the log small. */
    private static final class Load extends Thread {
        private final DefaultMQProducer producer;
        private final String topic;
        private final int window;
        private final Semaphore room;
        private final PrintStream file;
        private volatile boolean isWanted = true;
        private volatile long notBefore;
        private int next;

        Load(DefaultMQProducer producer, String[] words) throws Exception {
            this.producer = producer;
            this.topic = words[1];
            this.next = Integer.parseInt(words[2]);
            this.window = Integer.parseInt(words[3]);
            this.room = new Semaphore(window);
            this.file = new PrintStream(new FileOutputStream(words[4], true), true, "UTF-8");
        }

        @Override
        public void run() {
            try {
                while (isWanted) {
                    room.acquire();
                    Thread.sleep(Math.max(3, notBefore - System.currentTimeMillis()));
                    sendOne(producer, topic, next++, 0, (number, status, result) -> {
                        synchronized (file) {
                            file.println(line(number, status, result));
                        }
                        if (result == null) {
                            notBefore = System.currentTimeMillis() + 50;
                        }
                        room.release();
                    });
                }
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }

        int quiet() throws Exception {
            isWanted = false;
            join();
            room.acquire(window);
            file.close();
            return next;
        }
    }

    /** What one consumer was given. */
    private static final class Seen {
        private final Set<String> numbers = ConcurrentHashMap.newKeySet();
        private final AtomicInteger wrong = new AtomicInteger();
        private final AtomicInteger again = new AtomicInteger();

        void message(MessageExt message) {
            String number = message.getUserProperty("number");
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            if (!body.equals(Messages.body(Integer.parseInt(number)))) {
                wrong.incrementAndGet();
            }
            if (!numbers.add(number)) {
                again.incrementAndGet();
            }
        }
    }

    private static void consume(String nameServer, String topic, String group, String tag) throws Exception {
        Seen seen = new Seen();
        SEEN.put(group, seen);
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, keys(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setPollNameServerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, tag);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(seen::message);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static String received(String[] words) throws Exception {
        Seen seen = SEEN.get(words[1]);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(words[3]));
        while (seen.numbers.size() < Integer.parseInt(words[2]) && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        return seen.numbers.size() + " " + seen.wrong.get() + " " + seen.again.get();
    }
}
