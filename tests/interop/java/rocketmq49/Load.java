import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.CommunicationMode;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.producer.DefaultMQProducerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.protocol.header.SendMessageRequestHeader;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;

/**
 * A window of asynchronous sends to one broker, by what DefaultMQProducer stands on (MQClientAPIImpl, 4.9).
 *
 * "load ADDRESS TOPIC QUEUES BODY_BYTES WINDOW WARM_UP_MS MEASURED_MS" is answered with one line: messages
 * acknowledged in the measured span, the 50th and the 99th percentile of their time in milliseconds, how many
 * were refused in the whole run, and why the first of them was. "drain NAMESERVER TOPIC GROUP COUNT": a push consumer
 * reads the topic from its beginning; how many messages it got (at least COUNT, unless it took too long), and the
 * seconds from the first to the last of them. "stop" ends the process, as the end of the
 * input does.
 */
public final class Load {
    private static final long TIMEOUT_MS = 20_000;

    private final MQClientAPIImpl client;
    private final DefaultMQProducerImpl producer = new DefaultMQProducerImpl(new DefaultMQProducer("load"), null);

    private Load() {
        client = new MQClientAPIImpl(new NettyClientConfig(), null, null, new ClientConfig());
        client.start();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Load load = new Load();
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            if (words[0].equals("stop")) {
                answers.println("stopped");
                break;
            }
            if (words[0].equals("drain")) {
                answers.println(drain(words[1], words[2], words[3], Integer.parseInt(words[4])));
                continue;
            }
            int[] numbers = Arrays.stream(words).skip(3).mapToInt(Integer::parseInt).toArray();
            answers.println(load.run(words[1], words[2], numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]));
        }
        Runtime.getRuntime().halt(0);
    }

    private static String drain(String nameServer, String topic, String group, int count) throws Exception {
        AtomicLong got = new AtomicLong();
        AtomicLong first = new AtomicLong();
        CountDownLatch all = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            got.addAndGet(messages.size());
            messages.forEach(message -> all.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.subscribe(topic, "*");
        consumer.start();
        try {
            all.await(100, TimeUnit.SECONDS);
            return String.format(Locale.ROOT, "%d %.6f", got.get(), (System.nanoTime() - first.get()) / 1e9);
        } finally {
            consumer.shutdown();
        }
    }

    private String run(String address, String topic, int queues, int bodyBytes, int window, int warmUpMs,
        int measuredMs) throws Exception {
        byte[] body = new byte[bodyBytes];
        new Random(1).nextBytes(body);
        Meter meter = new Meter(window, System.nanoTime() + warmUpMs * 1_000_000L, measuredMs * 1_000_000L);
        for (long count = 0; System.nanoTime() < meter.end; count++) {
            if (meter.room.tryAcquire(TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
                send(address, topic, (int) (count % queues), body, meter);
            } else {
                meter.refuse("no answer in " + TIMEOUT_MS + " ms");
                break;
            }
        }
        // What is under way belongs to no later run.
        meter.room.tryAcquire(window, TIMEOUT_MS, TimeUnit.MILLISECONDS);
        return meter.line();
    }

    private void send(String address, String topic, int queueId, byte[] body, Meter meter) throws Exception {
        Message message = new Message(topic, body);
        MessageClientIDSetter.setUniqID(message);
        SendMessageRequestHeader header = new SendMessageRequestHeader();
        header.setProducerGroup("load");
        header.setTopic(topic);
        header.setDefaultTopic("TBW102");
        header.setDefaultTopicQueueNums(4);
        header.setQueueId(queueId);
        header.setSysFlag(0);
        header.setBornTimestamp(System.currentTimeMillis());
        header.setFlag(0);
        header.setProperties(MessageDecoder.messageProperties2String(message.getProperties()));
        header.setReconsumeTimes(0);
        header.setUnitMode(false);
        header.setBatch(false);
        Answer answer = new Answer(meter, System.nanoTime());
        try {
            client.sendMessage(address, "load", message, header, TIMEOUT_MS, CommunicationMode.ASYNC, answer, null,
                null, 0, null, producer);
        } catch (Exception error) {
            answer.onException(error);
        }
    }

    /** Takes one answer. */
    private static final class Answer implements SendCallback {
        private final Meter meter;
        private final long sent;

        Answer(Meter meter, long sent) {
            this.meter = meter;
            this.sent = sent;
        }

        @Override
        public void onSuccess(SendResult result) {
            if (result.getSendStatus() == SendStatus.SEND_OK) {
                meter.acknowledge(sent);
            } else {
                meter.refuse(result.getSendStatus().toString());
            }
            meter.room.release();
        }

        @Override
        public void onException(Throwable error) {
            meter.refuse(error.toString());
            meter.room.release();
        }
    }

    /** Counts what is acknowledged in the measured span. Its times are in microseconds, up to a minute. */
    private static final class Meter {
        private final Semaphore room;
        private final long begin;
        private final long end;
        private final int[] spans = new int[4_000_000];
        private final AtomicReference<String> reason = new AtomicReference<>("");
        private int count;
        private int refused;

        Meter(int window, long begin, long measured) {
            this.room = new Semaphore(window);
            this.begin = begin;
            this.end = begin + measured;
        }

        void acknowledge(long sent) {
            long now = System.nanoTime();
            if (now >= begin && now < end) {
                synchronized (this) {
                    if (count < spans.length) {
                        spans[count] = (int) Math.min((now - sent) / 1000, 60_000_000L);
                        count++;
                    }
                }
            }
        }

        synchronized void refuse(String why) {
            refused++;
            reason.compareAndSet("", why);
        }

        synchronized String line() {
            int[] sorted = Arrays.copyOf(spans, count);
            Arrays.sort(sorted);
            return String.format(Locale.ROOT, "%d %.3f %.3f %d %s", count, quantile(sorted, 0.50),
                quantile(sorted, 0.99), refused, reason.get().replaceAll("\\s+", " "));
        }

        private static double quantile(int[] sorted, double share) {
            if (sorted.length == 0) {
                return Double.NaN;
            }
            int rank = (int) Math.ceil(share * sorted.length) - 1;
            return sorted[Math.max(0, Math.min(sorted.length - 1, rank))] / 1000.0;
        }
    }
}
