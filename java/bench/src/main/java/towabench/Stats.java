package towabench;

import java.util.List;

/** Medians and spreads. */
public final class Stats {
    private Stats() {}

    /** Not a number if there are none. */
    public static double median(List<Double> values) {
        double[] v = values.stream().mapToDouble(Double::doubleValue).filter(d -> !Double.isNaN(d)).sorted().toArray();
        if (v.length == 0) {
            return Double.NaN;
        }
        return v.length % 2 == 1 ? v[v.length / 2] : (v[v.length / 2 - 1] + v[v.length / 2]) / 2;
    }

    public static double least(List<Double> values) {
        return values.stream().mapToDouble(Double::doubleValue).filter(d -> !Double.isNaN(d)).min().orElse(Double.NaN);
    }

    /** Smallest and largest: how far to trust the median. */
    public static List<Double> range(List<Double> values) {
        return List.of(least(values), values.stream().mapToDouble(Double::doubleValue).filter(d -> !Double.isNaN(d)).max().orElse(Double.NaN));
    }

    /** The medians of the lower and the upper half: how far to trust the median when some were disturbed. */
    public static List<Double> quartiles(List<Double> values) {
        List<Double> v = values.stream().filter(d -> !Double.isNaN(d)).sorted().toList();
        return List.of(median(v.subList(0, (v.size() + 1) / 2)), median(v.subList(v.size() / 2, v.size())));
    }

    public static double mean(List<Double> values) {
        return values.stream().mapToDouble(Double::doubleValue).filter(d -> !Double.isNaN(d)).average().orElse(Double.NaN);
    }
}
