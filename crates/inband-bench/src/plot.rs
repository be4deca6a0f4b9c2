//! Plots as SVG files. The plotting library is used only here.

use anyhow::{anyhow, ensure, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use serde::Serialize;

const WIDTH_PX: u32 = 960;
const LINES_HEIGHT_PX: u32 = 420;
const BAR_HEIGHT_PX: u32 = 20;
const HEADING_HEIGHT_PX: u32 = 34;
const NOTE_HEIGHT_PX: u32 = 16;
/// Where bars begin, to the right of their names.
const BARS_LEFT_PX: i32 = 380;
/// Space for the number to the right of the longest bar.
const BARS_RIGHT_PX: i32 = 130;
/// Characters per line of a note, at its font size.
const NOTE_LINE_CHARS: usize = 150;
const FONT: &str = "sans-serif";
const TICKS: usize = 8;
/// Colors of the series; reused from the start if there are more.
const COLORS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 96, 20),
    RGBColor(44, 140, 44),
    RGBColor(148, 80, 170),
    RGBColor(180, 40, 60),
    RGBColor(90, 90, 90),
];
/// For quoted figures and baselines.
const PALE: RGBColor = RGBColor(170, 170, 170);

/// One line of a chart.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// Shown in the legend.
    pub name: String,
    /// x and y, in the order in which they are joined.
    pub points: Vec<[f64; 2]>,
    /// Whether it is quoted from a paper instead of measured; drawn as points.
    pub is_quoted: bool,
}

/// One bar of a chart.
#[derive(Debug, Clone, Serialize)]
pub struct Bar {
    /// Shown on the left.
    pub name: String,
    pub value: f64,
    /// Whether it is a baseline or quoted from a paper; drawn pale.
    pub is_baseline: bool,
}

/// One chart of a plot.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Chart {
    Lines {
        title: String,
        /// The label of the x axis, with the unit.
        x: String,
        /// The label of the y axis, with the unit.
        y: String,
        series: Vec<Series>,
        /// Vertical lines at x, with a name.
        events: Vec<(f64, String)>,
    },
    Bars {
        /// The title, with the unit.
        title: String,
        /// From top to bottom.
        bars: Vec<Bar>,
    },
}

impl Chart {
    fn height_px(&self) -> u32 {
        match self {
            Chart::Lines { .. } => LINES_HEIGHT_PX,
            Chart::Bars { bars, .. } => HEADING_HEIGHT_PX + BAR_HEIGHT_PX * (bars.len() as u32 + 1),
        }
    }
}

/// Returns an SVG file with these charts stacked vertically and notes below them.
pub fn svg(title: &str, charts: &[Chart], notes: &str) -> Result<String> {
    ensure!(!charts.is_empty(), "nothing to plot of {title}");
    let notes = wrap(notes, NOTE_LINE_CHARS);
    let charts_height_px: u32 = charts.iter().map(Chart::height_px).sum();
    let notes_height_px = NOTE_HEIGHT_PX * (notes.len() as u32 + 1);
    let height_px = HEADING_HEIGHT_PX + charts_height_px + notes_height_px;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH_PX, height_px)).into_drawing_area();
        draw(&root, title, charts, &notes).map_err(|e| anyhow!("plotting {title}: {e}"))?;
        root.present()
            .map_err(|e| anyhow!("plotting {title}: {e}"))?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn draw(root: &Area<'_>, title: &str, charts: &[Chart], notes: &[String]) -> Drawn {
    root.fill(&WHITE)?;
    root.draw(&Text::new(title.to_owned(), (12, 10), (FONT, 18)))?;
    let mut rest = root.split_vertically(HEADING_HEIGHT_PX).1;
    for chart in charts {
        let (here, below) = rest.split_vertically(chart.height_px());
        match chart {
            Chart::Lines { .. } => draw_lines(&here, chart)?,
            Chart::Bars { title, bars } => draw_bars(&here, title, bars)?,
        }
        rest = below;
    }
    for (at, line) in notes.iter().enumerate() {
        let y = (NOTE_HEIGHT_PX as usize * at + 6) as i32;
        rest.draw(&Text::new(line.clone(), (12, y), (FONT, 11)))?;
    }
    Ok(())
}

fn draw_bars(area: &Area<'_>, title: &str, bars: &[Bar]) -> Drawn {
    area.draw(&Text::new(title.to_owned(), (12, 12), (FONT, 14)))?;
    let longest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let room = f64::from(WIDTH_PX as i32 - BARS_LEFT_PX - BARS_RIGHT_PX);
    for (at, bar) in bars.iter().enumerate() {
        let top = (HEADING_HEIGHT_PX + BAR_HEIGHT_PX * at as u32) as i32;
        let share = if longest > 0.0 && bar.value.is_finite() {
            bar.value.max(0.0) / longest
        } else {
            0.0
        };
        let right = BARS_LEFT_PX + (room * share) as i32;
        let color = if bar.is_baseline { PALE } else { COLORS[0] };
        let corners = [
            (BARS_LEFT_PX, top + 3),
            (right, top + BAR_HEIGHT_PX as i32 - 3),
        ];
        area.draw(&Rectangle::new(corners, color.filled()))?;
        area.draw(&Text::new(bar.name.clone(), (12, top + 4), (FONT, 12)))?;
        let number = super::row::number(bar.value);
        area.draw(&Text::new(number, (right + 6, top + 4), (FONT, 12)))?;
    }
    Ok(())
}

fn draw_lines(area: &Area<'_>, chart: &Chart) -> Drawn {
    let Chart::Lines {
        title,
        x,
        y,
        series,
        events,
    } = chart
    else {
        return Ok(());
    };
    let points = || series.iter().flat_map(|s| &s.points);
    let xs = points().map(|p| p[0]).chain(events.iter().map(|e| e.0));
    let (left, right) = span(xs);
    let (_, top) = span(points().map(|p| p[1]));
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, (FONT, 14))
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(86);
    let mut plane = builder.build_cartesian_2d(left..right, 0.0..top * 1.05)?;
    plane
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(TICKS)
        .y_labels(TICKS)
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|v| tick(*v))
        .y_label_formatter(&|v| tick(*v))
        .draw()?;
    for (at, one) in series.iter().enumerate() {
        let color = COLORS[at % COLORS.len()];
        let path: Vec<(f64, f64)> = one.points.iter().map(|p| (p[0], p[1])).collect();
        let key = move |(x, y)| Rectangle::new([(x, y - 3), (x + 12, y + 3)], color.filled());
        let dots = path.iter().map(|p| match one.is_quoted {
            true => Circle::new(*p, 5, color.stroke_width(2)),
            false => Circle::new(*p, 2, color.filled()),
        });
        plane.draw_series(dots)?.label(one.name.clone()).legend(key);
        if !one.is_quoted {
            plane.draw_series([PathElement::new(path, color.stroke_width(1))])?;
        }
    }
    for (at, name) in events {
        let line = vec![(*at, 0.0), (*at, top * 1.05)];
        plane.draw_series([PathElement::new(line, RED.stroke_width(1))])?;
        let place = (*at, top * 1.04);
        plane.draw_series([Text::new(
            format!(" {name}"),
            place,
            (FONT, 12).into_font().color(&RED),
        )])?;
    }
    plane
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(PALE)
        .label_font((FONT, 12))
        .draw()?;
    Ok(())
}

/// Minimum and maximum of the finite values, never equal.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        });
    match (low, high) {
        (low, high) if low < high => (low, high),
        (low, _) if low.is_finite() => (low - 0.5, low + low.abs().max(0.5)),
        _ => (0.0, 1.0),
    }
}

fn tick(value: f64) -> String {
    match value.abs() {
        v if v >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        v if v >= 10.0 || v == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

/// Wraps text at this many characters per line; existing line breaks stay.
fn wrap(text: &str, chars_max: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > chars_max {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that tags are balanced and nothing is left open: enough to parse as XML.
    fn assert_well_formed(svg: &str) {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').expect("a tag ends");
            let name = tag.split([' ', '\n', '/']).find(|n| !n.is_empty());
            let name = name.expect("a tag has a name").to_owned();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?} left open");
        assert!(svg.starts_with("<svg"), "{svg:.40}");
    }

    fn lines(points: Vec<[f64; 2]>) -> Chart {
        Chart::Lines {
            title: "title".into(),
            x: "x".into(),
            y: "y".into(),
            series: vec![Series {
                name: "values < & >".into(),
                points,
                is_quoted: false,
            }],
            events: vec![(1.5, "killed".into())],
        }
    }

    #[test]
    fn plots_are_svg_with_everything_in_them() {
        let bars = Chart::Bars {
            title: "commands/s".into(),
            bars: vec![Bar {
                name: "the bar".into(),
                value: 1234.0,
                is_baseline: false,
            }],
        };
        let charts = [lines(vec![[1.0, 5.0], [2.0, 7.0]]), bars];
        let svg = svg("the title", &charts, "a note").expect("a plot");
        assert_well_formed(&svg);
        for part in [
            "the title",
            "a note",
            "the bar",
            "1,234",
            "killed",
            "<circle",
        ] {
            assert!(svg.contains(part), "no {part} in it");
        }
        assert!(svg.contains("values &lt; &amp; &gt;"));
    }

    #[test]
    fn odd_figures_still_make_a_plot() {
        for points in [
            vec![],
            vec![[1.0, 1.0]],
            vec![[0.0, 0.0], [0.0, 0.0]],
            vec![[1.0, f64::NAN], [2.0, 3.0]],
        ] {
            assert_well_formed(&svg("odd", &[lines(points)], "").expect("a plot"));
        }
        assert!(svg("nothing", &[], "").is_err());
    }

    #[test]
    fn notes_are_wrapped_at_words() {
        assert_eq!(wrap("aa bb cc\ndd", 5), ["aa bb", "cc", "dd"]);
    }
}
