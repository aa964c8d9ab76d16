//! The chart: GPUs in use and stranded demand over time, static partitions beside nodes that follow demand.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::measure::Bucket;
use crate::report::Outcome;

const SIZE: (u32, u32) = (1000, 640);
const STATIC: RGBColor = RGBColor(0xd9, 0x5f, 0x02);
const DYNAMIC: RGBColor = RGBColor(0x1b, 0x6c, 0xa8);
const TEXT: RGBColor = RGBColor(0x33, 0x33, 0x33);
const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);

/// The chart could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the chart: {0}")]
pub struct ChartError(String);

fn failed(error: impl std::fmt::Display) -> ChartError {
    ChartError(error.to_string())
}

/// Draws the chart as SVG.
///
/// # Errors
/// It cannot be drawn.
pub fn draw_chart(outcome: &Outcome) -> Result<String, ChartError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let (upper, lower) = area.split_vertically(SIZE.1 / 2);
        let gpus = f64::from(outcome.report.fleet.nodes) * f64::from(outcome.report.fleet.gpus_per_node);
        draw_panel(
            &upper,
            outcome,
            &format!("GPUs in use, of {gpus}"),
            Some(gpus),
            SeriesLabelPosition::LowerMiddle,
            |bucket| bucket.busy,
        )?;
        let served = outcome
            .report
            .stranded_demand_served
            .map(|served| format!(": {:.1} % served", 100.0 * served))
            .unwrap_or_default();
        let title = format!("Stranded demand: GPUs requested while idle on other tenants' nodes{served}");
        draw_panel(
            &lower,
            outcome,
            &title,
            None,
            SeriesLabelPosition::UpperRight,
            |bucket| bucket.stranded,
        )?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// One of the two diagrams.
fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    outcome: &Outcome,
    title: &str,
    top: Option<f64>,
    legend: SeriesLabelPosition,
    of: fn(&Bucket) -> u64,
) -> Result<(), ChartError> {
    let fixed = points(&outcome.fixed, of);
    let dynamic = points(&outcome.dynamic, of);
    let (days, _) = fixed.last().copied().unwrap_or((1.0, 0.0));
    let highest = fixed
        .iter()
        .chain(&dynamic)
        .map(|(_, value)| *value)
        .fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 17).into_font().color(&TEXT))
        .margin(14)
        .x_label_area_size(38)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..days, 0.0..top.unwrap_or(highest) * 1.05)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .label_style(("sans-serif", 13).into_font().color(&TEXT))
        .x_label_formatter(&|days| format!("{days}"))
        .y_label_formatter(&|gpus| format!("{gpus}"))
        .x_desc("days")
        .y_desc("GPUs")
        .draw()
        .map_err(failed)?;
    for (name, points, color) in [
        ("static partitions", fixed, STATIC),
        ("nodes follow demand", dynamic, DYNAMIC),
    ] {
        let area = AreaSeries::new(points.clone(), 0.0, color.mix(0.12));
        chart.draw_series(area).map_err(failed)?;
        let line = LineSeries::new(points, color.stroke_width(2));
        chart
            .draw_series(line)
            .map_err(failed)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], color.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.85))
        .label_font(("sans-serif", 13).into_font().color(&TEXT))
        .draw()
        .map_err(failed)
}

/// Averages of the parts of the window, each at its end, in days.
#[expect(clippy::cast_precision_loss, reason = "a picture")]
fn points(series: &[Bucket], of: fn(&Bucket) -> u64) -> Vec<(f64, f64)> {
    let mut seconds = 0;
    let average = |bucket: &Bucket| {
        seconds += bucket.seconds;
        (
            seconds as f64 / 86400.0,
            of(bucket) as f64 / bucket.seconds.max(1) as f64,
        )
    };
    series.iter().map(average).collect()
}
