package sparkonce.pravega;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.pravega.client.BatchClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.admin.StreamInfo;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.admin.impl.StreamManagerImpl;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.batch.impl.BatchClientFactoryImpl;
import io.pravega.client.batch.impl.SegmentRangeImpl;
import io.pravega.client.connection.impl.ConnectionPool;
import io.pravega.client.connection.impl.ConnectionPoolImpl;
import io.pravega.client.connection.impl.RawClient;
import io.pravega.client.connection.impl.SocketConnectionFactoryImpl;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import io.pravega.client.stream.impl.SegmentWithRange;
import io.pravega.client.stream.impl.StreamCutImpl;
import io.pravega.client.stream.impl.StreamSegmentsWithPredecessors;
import io.pravega.client.stream.impl.StreamSegmentSuccessors;
import io.pravega.common.concurrent.ExecutorServiceHelpers;
import io.pravega.common.util.RetriesExhaustedException;
import io.pravega.shared.protocol.netty.ConnectionFailedException;
import io.pravega.shared.protocol.netty.WireCommands;
import io.pravega.shared.security.auth.AccessOperation;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.net.ConnectException;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Sends requests about one stream to Pravega. Positions map segment ids to offsets. */
public class StreamClient {
    private static final int ATTEMPTS = 3;
    private static final int LONGEST_PAUSE_MS = 1000;
    private static final long ANSWERS_WITHIN_MS = 60000;
    private static final long ANSWERS_IN_PATIENCE = 5;
    private static final long LEAST_MS = 1000;
    // Attributes.CREATION_TIME of Pravega's segment store, which the public client does not return.
    private static final UUID MADE_AT = new UUID(Long.MIN_VALUE, 0);
    private final ClientConfig config;
    private final Stream stream;
    private final StreamManager manager;
    private final ScheduledExecutorService threads;
    private final Controller controller;
    private final BatchClientFactory batches;
    private final ConnectionPool connections;
    private final long withinMs;

    StreamClient(ClientConfig config, String name, long patienceMs) {
        this.config = config;
        withinMs = Math.max(LEAST_MS, Math.min(ANSWERS_WITHIN_MS, patienceMs / ANSWERS_IN_PATIENCE));
        stream = Stream.of(name);
        // Pravega answers a request about a wrong position with UNKNOWN, after which the client retries, by default for
        // minutes.
        ControllerImplConfig settings = ControllerImplConfig.builder()
            .clientConfig(config).retryAttempts(ATTEMPTS).maxBackoffMillis(LONGEST_PAUSE_MS).build();
        manager = new StreamManagerImpl(config, settings);
        threads = ExecutorServiceHelpers.newScheduledThreadPool(1, "sparkonce-pravega");
        controller = new ControllerImpl(settings, threads);
        batches = new BatchClientFactoryImpl(controller, config, new SocketConnectionFactoryImpl(config));
        connections = new ConnectionPoolImpl(config, new SocketConnectionFactoryImpl(config));
    }

    static SegmentRange range(Stream stream, Part part) {
        Segment segment = new Segment(stream.getScope(), stream.getStreamName(), part.segment);
        return SegmentRangeImpl.builder().segment(segment).startOffset(part.start).endOffset(part.end).build();
    }

    void close() {
        batches.close();
        connections.close();
        manager.close();
        threads.shutdownNow();
    }

    /** Returns the head and the tail of the stream at about the same time. The tail of a sealed stream is empty. */
    StreamInfo ends() {
        try {
            return (StreamInfo) answer(manager.fetchStreamInfo(stream.getScope(), stream.getStreamName()));
        } catch (ExecutionException error) {
            if (String.valueOf(error.getCause()).indexOf("NOT_FOUND") >= 0) {
                throw new IllegalStateException("There is no Pravega stream '" + stream.getScopedName() + "' at "
                    + config.getControllerURI() + ". Next: Create it, or correct its name.", error);
            }
            throw away(error.getCause());
        }
    }

    static Map<Long, Long> positions(StreamCut cut) {
        Map<Long, Long> found = new TreeMap<Long, Long>();
        for (Map.Entry one : cut.asImpl().getPositions().entrySet()) {
            found.put(((Segment) one.getKey()).getSegmentId(), (Long) one.getValue());
        }
        return found;
    }

    StreamCut cut(Map<Long, Long> positions) {
        Map<Segment, Long> found = new HashMap<Segment, Long>();
        for (Map.Entry one : positions.entrySet()) {
            found.put(segment((Long) one.getKey()), (Long) one.getValue());
        }
        return new StreamCutImpl(stream, found);
    }

    /** Returns the positions of a cut that a user has specified as text. */
    Map<Long, Long> given(String text) {
        StreamCut cut = StreamCut.from(text);
        if (!cut.asImpl().getStream().equals(stream)) {
            throw new IllegalStateException("The stream cut " + text + " is of '"
                + cut.asImpl().getStream().getScopedName() + "', and the stream is '" + stream.getScopedName()
                + "'. Next: Give a cut of this stream.");
        }
        return positions(cut);
    }

    /** Returns the existing part of each segment between head and tail. */
    Map<Long, Part> there(StreamInfo ends) {
        Map<Long, Part> found = new TreeMap<Long, Part>();
        try {
            Iterator each = batches.getSegments(stream, ends.getHeadStreamCut(), ends.getTailStreamCut()).getIterator();
            while (each.hasNext()) {
                SegmentRange range = (SegmentRange) each.next();
                Part part = new Part(range.getSegmentId(), range.getStartOffset(), range.getEndOffset());
                found.put(part.segment, part);
            }
        } catch (RuntimeException error) {
            throw told(error);
        }
        return found;
    }

    /**
     * Returns the ids of the segments between two positions.
     *
     * @throws ExecutionException if Pravega refuses the request, because it does not have these positions
     */
    Set<Long> between(Map<Long, Long> from, Map<Long, Long> to) throws ExecutionException {
        Set<Long> found = new TreeSet<Long>();
        try {
            Object told = answer(controller.getSegments(cut(from), cut(to)));
            for (Object segment : ((StreamSegmentSuccessors) told).getSegments()) {
                found.add(((Segment) segment).getSegmentId());
            }
        } catch (ExecutionException error) {
            if (isRefusal(error)) {
                throw error;
            }
            throw away(error.getCause());
        }
        return found;
    }

    /** Returns a segment's successors, each with all segments that it succeeds; empty if the segment has not ended. */
    Map<Long, List<Long>> successors(long id) {
        Map<Long, List<Long>> found = new TreeMap<Long, List<Long>>();
        try {
            Object told = answer(controller.getSuccessors(segment(id)));
            for (Map.Entry one : ((StreamSegmentsWithPredecessors) told).getSegmentToPredecessor().entrySet()) {
                found.put(((SegmentWithRange) one.getKey()).getSegment().getSegmentId(), (List) one.getValue());
            }
        } catch (ExecutionException error) {
            throw away(error.getCause());
        }
        return found;
    }

    /** Returns the time at which a segment was created, in milliseconds since 1970; -1 if there is no such segment. */
    long madeAt(long id) {
        RawClient raw = new RawClient(controller, connections, segment(id));
        try {
            String token = (String) answer(controller.getOrRefreshDelegationTokenFor(
                stream.getScope(), stream.getStreamName(), AccessOperation.READ));
            long number = raw.getFlow().getNextSequenceNumber();
            WireCommands.GetSegmentAttribute asked =
                new WireCommands.GetSegmentAttribute(number, segment(id).getScopedName(), MADE_AT, token);
            Object told = answer(raw.sendRequest(number, asked));
            if (told instanceof WireCommands.SegmentAttribute) {
                return ((WireCommands.SegmentAttribute) told).getValue();
            }
            if (told instanceof WireCommands.NoSuchSegment) {
                return -1;
            }
            throw away(new IllegalStateException(String.valueOf(told)));
        } catch (ExecutionException error) {
            throw away(error.getCause());
        } finally {
            raw.close();
        }
    }

    /** Returns the first end of an event at least ``distance`` bytes into a part. Pravega 0.13 cannot report it. */
    long boundary(Part part, long distance) {
        if (part.end - part.start <= distance) {
            return part.end;
        }
        SegmentIterator events = batches.readSegment(range(stream, part), new ByteBufferSerializer());
        try {
            while (events.hasNext() && events.getOffset() - part.start < distance) {
                events.next();
            }
            return events.getOffset();
        } catch (RuntimeException error) {
            throw told(error);
        } finally {
            events.close();
        }
    }

    String name() {
        return stream.getScopedName();
    }

    private Segment segment(long id) {
        return new Segment(stream.getScope(), stream.getStreamName(), id);
    }

    private Object answer(Future future) throws ExecutionException {
        try {
            return future.get(withinMs, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) { // by Spark, which stops the query and knows this kind of error
            Thread.currentThread().interrupt();
            throw new UncheckedIOException(new InterruptedIOException("interrupted while Pravega was asked"));
        } catch (TimeoutException error) {
            throw away(error);
        }
    }

    /** Returns an error of Pravega's client, converted to an outage if one of its causes shows an outage. */
    private RuntimeException told(RuntimeException error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof RetriesExhaustedException || cause instanceof ConnectionFailedException
                || cause instanceof ConnectException || cause instanceof StatusRuntimeException) {
                return away(error);
            }
        }
        return error;
    }

    /** Returns true if Pravega has refused a request about positions. It answers UNKNOWN, even after retries. */
    private static boolean isRefusal(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof StatusRuntimeException) {
                Status.Code code = ((StatusRuntimeException) cause).getStatus().getCode();
                return code == Status.Code.INVALID_ARGUMENT || code == Status.Code.UNKNOWN;
            }
        }
        return false;
    }

    private AwayException away(Throwable error) {
        return new AwayException("Pravega at " + config.getControllerURI() + " does not report about the stream '" + name() + "': "
            + error + ". Next: See that it runs, and that this host reaches it.", error);
    }
}
