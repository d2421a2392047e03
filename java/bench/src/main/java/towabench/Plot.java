package towabench;

import java.util.ArrayList;
import java.util.List;

/** Bars as inline SVG, side by side or stacked. Colours come from the page's classes; every bar carries its value as a tool tip. */
final class Plot {
    private static final double WIDTH = 760;
    private static final double HEIGHT = 260;
    private static final double LEFT = 58;
    private static final double RIGHT = 24;
    private static final double TOP = 12;
    private static final double BOTTOM = 34;

    private record Series(String name, String colour, List<Double> values) {}

    private final String label;
    private final String unit;
    private final double least;
    private final List<String> groups;
    private final List<Series> series = new ArrayList<>();
    private boolean stacked;

    Plot(String label, String unit, double least, List<String> groups) {
        this.label = label;
        this.unit = unit;
        this.least = least;
        this.groups = groups;
    }

    Plot stacked() {
        stacked = true;
        return this;
    }

    void series(String name, String colour, List<Double> values) {
        series.add(new Series(name, colour, values));
    }

    String svg() {
        double most = least + 1e-6;
        for (int g = 0; g < groups.size(); g++) {
            double sum = 0;
            for (Series s : series) {
                double v = s.values().get(g);
                if (!Double.isNaN(v)) {
                    sum = stacked ? sum + v : v;
                    most = Math.max(most, sum);
                }
            }
        }
        StringBuilder out = new StringBuilder("<p class=\"legend\">");
        series.forEach(s -> out.append("<span><i class=\"").append(s.colour()).append("\"></i>").append(escape(s.name())).append("</span>"));
        out.append("</p><svg viewBox=\"0 0 760 260\" role=\"img\" aria-label=\"").append(escape(label)).append("\">");
        double step = step(most);
        for (double v = 0; v <= most * 1.0001; v += step) {
            out.append(f("<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, WIDTH - RIGHT, y(v, most), y(v, most)));
            out.append(f("<text class=\"tick\" x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%s</text>", LEFT - 6, y(v, most) + 4, Targets.number(v)));
        }
        out.append(f("<text class=\"tick\" transform=\"translate(12 %.0f) rotate(-90)\" text-anchor=\"middle\">%s</text>", HEIGHT / 2, escape(unit)));
        double room = (WIDTH - LEFT - RIGHT) / Math.max(1, groups.size());
        for (int g = 0; g < groups.size(); g++) {
            group(out, g, LEFT + g * room, room, most);
        }
        return out.append(f("<line class=\"axis\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/></svg>", LEFT, WIDTH - RIGHT, y(0, most), y(0, most))).toString();
    }

    private void group(StringBuilder out, int g, double left, double room, double most) {
        out.append(f("<text class=\"tick\" x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>", left + room / 2, HEIGHT - BOTTOM + 18, escape(groups.get(g))));
        int bars = stacked ? 1 : series.size();
        double width = Math.min(34, room * 0.76 / bars);
        double x = left + (room - width * bars) / 2;
        double from = 0;
        for (Series s : series) {
            double v = s.values().get(g);
            if (!Double.isNaN(v)) {
                double top = y(from + v, most);
                out.append(f("<rect class=\"fill %s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"%s><title>%s</title></rect>", s.colour(), x + 1, top, width - 2,
                    Math.max(0, y(from, most) - top), stacked ? "" : " rx=\"2\"", escape(groups.get(g) + ", " + s.name() + ": " + Targets.number(v))));
                from = stacked ? from + v : 0;
            }
            x += stacked ? 0 : width;
        }
    }

    private static double y(double v, double most) {
        return HEIGHT - BOTTOM - Math.max(0, Math.min(1, v / most)) * (HEIGHT - BOTTOM - TOP);
    }

    /** About five round steps. */
    private static double step(double most) {
        double power = Math.pow(10, Math.floor(Math.log10(most / 5)));
        for (double s : new double[] {1, 2, 2.5, 5, 10}) {
            if (s * power >= most / 5) {
                return s * power;
            }
        }
        return power * 10;
    }

    private static String f(String form, Object... values) {
        return String.format(java.util.Locale.ROOT, form, values);
    }

    static String escape(String text) {
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\"", "&quot;");
    }
}
