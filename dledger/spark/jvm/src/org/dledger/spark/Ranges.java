package org.dledger.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.LongFunction;
import java.util.stream.Collectors;
import java.util.stream.LongStream;

/** A set of longs: ranges in order, with gaps between them. */
final class Ranges {
    static final Ranges ALL = new Ranges(List.of(new long[] {Long.MIN_VALUE, Long.MAX_VALUE}));
    static final Ranges NONE = new Ranges(List.of());

    /** First and last of each. */
    private final List<long[]> spans;

    private Ranges(List<long[]> spans) {
        this.spans = spans;
    }

    static Ranges of(long first, long last) {
        return first > last ? NONE : new Ranges(List.of(new long[] {first, last}));
    }

    static Ranges from(long first) {
        return of(first, Long.MAX_VALUE);
    }

    static Ranges after(long value) {
        return value == Long.MAX_VALUE ? NONE : from(value + 1);
    }

    static Ranges upTo(long last) {
        return of(Long.MIN_VALUE, last);
    }

    static Ranges before(long value) {
        return value == Long.MIN_VALUE ? NONE : upTo(value - 1);
    }

    static Ranges values(long[] values) {
        return joined(Arrays.stream(values).mapToObj(value -> new long[] {value, value}).toList());
    }

    private static Ranges joined(List<long[]> some) {
        List<long[]> sorted = new ArrayList<>(some);
        sorted.sort((one, other) -> Long.compare(one[0], other[0]));
        List<long[]> found = new ArrayList<>();
        for (long[] span : sorted) {
            long[] last = found.isEmpty() ? null : found.get(found.size() - 1);
            if (last != null && (last[1] == Long.MAX_VALUE || span[0] <= last[1] + 1)) {
                last[1] = Math.max(last[1], span[1]);
            } else {
                found.add(span.clone());
            }
        }
        return new Ranges(found);
    }

    Ranges or(Ranges other) {
        List<long[]> both = new ArrayList<>(spans);
        both.addAll(other.spans);
        return joined(both);
    }

    Ranges not() {
        List<long[]> found = new ArrayList<>();
        long first = Long.MIN_VALUE;
        for (long[] span : spans) {
            if (first < span[0]) {
                found.add(new long[] {first, span[0] - 1});
            }
            if (span[1] == Long.MAX_VALUE) {
                return new Ranges(found);
            }
            first = span[1] + 1;
        }
        found.add(new long[] {first, Long.MAX_VALUE});
        return new Ranges(found);
    }

    Ranges and(Ranges other) {
        List<long[]> found = new ArrayList<>();
        for (int at = 0, others = 0; at < spans.size() && others < other.spans.size();) {
            long[] one = spans.get(at);
            long[] two = other.spans.get(others);
            if (Math.max(one[0], two[0]) <= Math.min(one[1], two[1])) {
                found.add(new long[] {Math.max(one[0], two[0]), Math.min(one[1], two[1])});
            }
            if (one[1] < two[1]) {
                at++;
            } else {
                others++;
            }
        }
        return new Ranges(found);
    }

    int count() {
        return spans.size();
    }

    /** One range with all of these; there is one. */
    Ranges hull() {
        return of(spans.get(0)[0], spans.get(spans.size() - 1)[1]);
    }

    /** First and last of each range, one after the other. */
    long[] flat() {
        return spans.stream().flatMapToLong(LongStream::of).toArray();
    }

    /** As a reader of EXPLAIN expects it. */
    String show(String column, LongFunction<String> text) {
        return spans.isEmpty() ? "no " + column : spans.stream().map(span -> {
            if (span[0] == span[1]) {
                return column + " = " + text.apply(span[0]);
            }
            String from = column + " >= " + text.apply(span[0]);
            String to = column + " <= " + text.apply(span[1]);
            return span[0] == Long.MIN_VALUE ? span[1] == Long.MAX_VALUE ? column : to
                : span[1] == Long.MAX_VALUE ? from : from + " and " + to;
        }).collect(Collectors.joining(" or "));
    }
}
