package sparkonce.pravega;

import io.pravega.client.admin.StreamInfo;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Finds the events between two positions in a stream, and the end of a batch. Positions map segment ids to offsets. */
public class Planner {
    private static final Logger LOG = LoggerFactory.getLogger("sparkonce");
    private final StreamClient client;
    private final String accepted;
    private final Map<Long, Long> birth = new TreeMap<Long, Long>();

    Planner(StreamClient client, String accepted) {
        this.client = client;
        this.accepted = accepted;
    }

    /** Returns the position after the last event, even for a sealed stream. */
    Map<Long, Long> tail() {
        return tail(client.ends());
    }

    private Map<Long, Long> tail(StreamInfo ends) {
        if (!ends.isSealed()) {
            return StreamClient.positions(ends.getTailStreamCut());
        }
        Map<Long, Long> found = new TreeMap<Long, Long>();
        for (Part part : client.there(ends).values()) {
            if (client.successors(part.segment).isEmpty()) {
                found.put(part.segment, part.end);
            }
        }
        return found;
    }

    /** Returns the creation time of one of a position's segments, by the segment's id; empty if it is gone. */
    Map<Long, Long> made(Map<Long, Long> positions) {
        Map<Long, Long> found = new TreeMap<Long, Long>();
        Long id = (Long) new TreeSet<Long>(positions.keySet()).first();
        if (!birth.containsKey(id)) {
            birth.clear();
            birth.put(id, client.madeAt(id));
        }
        if ((Long) birth.get(id) >= 0) {
            found.put(id, (Long) birth.get(id));
        }
        return found;
    }

    /** Checks that the stream is the one of a cut. A segment that is gone proves nothing, and is detected elsewhere. */
    void check(Cut cut) {
        for (Map.Entry one : cut.made.entrySet()) {
            long now = client.madeAt((Long) one.getKey());
            if (now >= 0 && now != (Long) one.getValue()) {
                throw another(cut.positions, "its segment " + one.getKey() + " was made at " + now + " ms, and not at "
                    + one.getValue() + " ms");
            }
        }
    }

    /** Returns the position up to which the batch after a cut reads: the tail, or about ``most`` bytes further. */
    Map<Long, Long> next(Cut cut, Map<Long, Long> target, long most) {
        StreamInfo ends = client.ends();
        Map<Long, Long> from = cut.positions;
        Map<Long, Long> to = target == null ? tail(ends) : target;
        if (from.equals(to)) {
            return from;
        }
        check(cut);
        Map<Long, Part> parts = new TreeMap<Long, Part>();
        long total = 0;
        for (Part part : parts(from, to, ends)) {
            parts.put(part.segment, part);
            total += part.end - part.start;
        }
        if (total <= most) {
            return to;
        }
        Map<Long, Long> found = advance(from, parts, most);
        if (found.equals(from)) {
            throw new IllegalStateException("The Pravega stream '" + client.name() + "' has events behind " + from
                + ", and no segment that follows can be read. Next: If the query began at a given cut, give one that the "
                + "stream itself has told. Otherwise start the job with a new checkpoint.");
        }
        return found;
    }

    /** Returns the parts between two positions, including empty ones. */
    Collection<Part> parts(Map<Long, Long> from, Map<Long, Long> to) {
        return parts(from, to, client.ends());
    }

    /** Returns the parts between two positions. If events are missing, the query stops, unless that is accepted. */
    private Collection<Part> parts(Map<Long, Long> from, Map<Long, Long> to, StreamInfo ends) {
        Map<Long, Long> head = StreamClient.positions(ends.getHeadStreamCut());
        // A transaction that ends after a scaling also creates segments with an old epoch. If one of the old segments
        // still exists, its creation time has already been checked.
        if (isAnother(from.keySet(), head.keySet()) && !isThere(from.keySet())) {
            throw another(from, "its segments are " + head.keySet() + " now");
        }
        Map<Long, Long> tail = StreamClient.positions(ends.getTailStreamCut());
        Map<Long, Part> there = there(from, head, tail, ends);
        List<Part> found = new ArrayList<Part>();
        List<String> lost = new ArrayList<String>();
        for (Long id : between(from, to)) {
            Part whole = (Part) there.get(id);
            long start = from.containsKey(id) ? (Long) from.get(id) : 0L;
            if (whole == null) {
                lost.add("segment " + id + " from " + start + " on");
                found.add(new Part(id, start, start)); // its successors follow it
                continue;
            }
            if (!to.containsKey(id) && tail.containsKey(id)) {
                throw new IllegalStateException("The batch that ends at " + to + " has no end in segment " + id
                    + " of the Pravega stream '" + client.name() + "', which goes on. Next: Start the job with a new "
                    + "checkpoint.");
            }
            long end = to.containsKey(id) ? (Long) to.get(id) : whole.end;
            if (start > whole.end || end > whole.end) {
                throw another(from, "segment " + id + " ends at " + whole.end);
            }
            if (start < whole.start) {
                lost.add("segment " + id + " from " + start + " to " + whole.start);
                start = Math.min(whole.start, end);
            }
            found.add(new Part(id, start, end));
        }
        if (!lost.isEmpty()) {
            accept(lost, head);
        }
        return found;
    }

    /** Returns the existing part of each segment. If no segment has ended, no request is needed. */
    private Map<Long, Part> there(
        Map<Long, Long> from, Map<Long, Long> head, Map<Long, Long> tail, StreamInfo ends
    ) {
        if (!from.keySet().equals(tail.keySet())) {
            return client.there(ends);
        }
        Map<Long, Part> found = new TreeMap<Long, Part>();
        for (Long id : from.keySet()) {
            found.put(id, new Part(id, head.containsKey(id) ? (Long) head.get(id) : 0L, (Long) tail.get(id)));
        }
        return found;
    }

    private Set<Long> between(Map<Long, Long> from, Map<Long, Long> to) {
        if (from.keySet().equals(to.keySet())) {
            return from.keySet();
        }
        try {
            return client.between(from, to);
        } catch (ExecutionException error) { // it reported head and tail a moment ago
            throw another(from, "Pravega refuses to tell what is between this and " + to + " (" + error.getCause() + ")");
        }
    }

    private void accept(List<String> lost, Map<Long, Long> head) {
        if (accepted == null || !client.given(accepted).equals(head)) {
            throw new IllegalStateException("The Pravega stream '" + client.name() + "' was truncated before this query "
                + "has read all: " + lost + " is gone. Next: Give accept_lost='" + client.cut(head).asText()
                + "' to go on at its head without these bytes, and the stream a longer retention.");
        }
        LOG.warn("Of the Pravega stream '{}' {} is gone, which is accepted.", client.name(), lost);
    }

    /** Returns true if at least one of these segments still exists. */
    private boolean isThere(Set<Long> ids) {
        for (Long id : ids) {
            if (client.madeAt(id) >= 0) {
                return true;
            }
        }
        return false;
    }

    /** Returns true if a stream was recreated: segment numbers continue, but epochs start at 0 again. */
    private static boolean isAnother(Set<Long> from, Set<Long> head) {
        long newest = -1;
        long epoch = Long.MAX_VALUE;
        for (long id : from) {
            newest = Math.max(newest, id & 0xFFFFFFFFL);
            epoch = Math.min(epoch, id >> 32);
        }
        for (long id : head) {
            if ((id & 0xFFFFFFFFL) > newest && id >> 32 <= epoch) {
                return true;
            }
        }
        return false;
    }

    private IllegalStateException another(Map<Long, Long> from, String why) {
        return new IllegalStateException("The Pravega stream '" + client.name() + "' is not the one that this query has "
            + "read up to " + from + ": " + why + ". It was deleted and made again, or the cluster is another one. Next: "
            + "If its events are to be read from the beginning, start the job with a new checkpoint. Otherwise restore "
            + "the stream.");
    }

    /** Moves a position forward through parts by about ``most`` bytes. */
    private Map<Long, Long> advance(Map<Long, Long> from, Map<Long, Part> parts, long most) {
        Map<Long, Long> at = new TreeMap<Long, Long>(from);
        for (Long id : from.keySet()) {
            if (parts.containsKey(id)) {
                at.put(id, ((Part) parts.get(id)).start);
            }
        }
        long left = most;
        while (left > 0) {
            while (succeed(at, parts)) { // successors may be empty, and have successors
            }
            List<Long> open = new ArrayList<Long>();
            for (Long id : at.keySet()) {
                if (!isRead(id, at, parts)) {
                    open.add(id);
                }
            }
            if (open.isEmpty()) {
                break;
            }
            long share = Math.max(1, left / open.size());
            for (Long id : open) {
                long before = (Long) at.get(id);
                long after = client.boundary(new Part(id, before, ((Part) parts.get(id)).end), share);
                at.put(id, after);
                left -= after - before;
            }
        }
        return at;
    }

    /** Replaces each segment that was read completely with its successors. Returns true if there were any. */
    private boolean succeed(Map<Long, Long> at, Map<Long, Part> parts) {
        for (Long id : at.keySet()) {
            Set<Long> read = new TreeSet<Long>();
            Set<Long> due = new TreeSet<Long>();
            if (isDue(id, at, parts, read, due) && !due.isEmpty()) {
                at.keySet().removeAll(read);
                for (Long one : due) {
                    at.put(one, ((Part) parts.get(one)).start);
                }
                return true;
            }
        }
        return false;
    }

    /**
     * Returns true if the successors of a segment are due, and collects the segments that they replace.
     *
     * A successor may succeed several segments, each of which may have several successors. A cut must contain either
     * all of the former or all of the latter. Otherwise, events would be read twice or never. So they are collected and
     * replaced together.
     */
    private boolean isDue(Long id, Map<Long, Long> at, Map<Long, Part> parts, Set<Long> read, Set<Long> due) {
        if (!read.add(id)) {
            return true;
        }
        if (!at.containsKey(id) || !isRead(id, at, parts)) {
            return false;
        }
        for (Map.Entry one : client.successors(id).entrySet()) {
            if (!parts.containsKey(one.getKey())) {
                return false;
            }
            due.add((Long) one.getKey());
            for (Long succeeded : (List<Long>) one.getValue()) {
                if (!isDue(succeeded, at, parts, read, due)) {
                    return false;
                }
            }
        }
        return true;
    }

    private static boolean isRead(Long id, Map<Long, Long> at, Map<Long, Part> parts) {
        return !parts.containsKey(id) || (Long) at.get(id) >= ((Part) parts.get(id)).end;
    }
}
