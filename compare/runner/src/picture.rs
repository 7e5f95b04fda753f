//! A panel for each workload: a dot for each library on a logarithmic scale.

use std::path::Path;

use plotters::{
    coord::Shift,
    prelude::{
        ChartBuilder, Circle, Color, DrawingArea, EmptyElement, IntoDrawingArea, IntoLogRange,
        PathElement, RGBColor, SVGBackend, Text,
    },
    style::{FontStyle, FontTransform, IntoFont, TextStyle},
};

use crate::{
    Failure,
    rounds::Field,
    table::{Column, SPEED, cell, figure},
};

const WIDTH: u32 = 800;
const ROW: u32 = 17;
/// Of a panel: its heading and its scale.
const AROUND: u32 = 52;
const NAMES: i32 = 96;
/// A server that hears nothing has no place on a logarithmic scale.
const LEAST: f64 = 1e-3;

pub(crate) struct Colours {
    ground: RGBColor,
    ink: RGBColor,
    dim: RGBColor,
    line: RGBColor,
    ours: RGBColor,
}

/// The colours of scripts/picture.
pub(crate) const THEMES: [(&str, Colours); 2] = [
    (
        "light",
        Colours {
            ground: RGBColor(0xff, 0xff, 0xff),
            ink: RGBColor(0x1f, 0x23, 0x28),
            dim: RGBColor(0x59, 0x63, 0x6e),
            line: RGBColor(0xd1, 0xd9, 0xe0),
            ours: RGBColor(0x09, 0x69, 0xda),
        },
    ),
    (
        "dark",
        Colours {
            ground: RGBColor(0x0d, 0x11, 0x17),
            ink: RGBColor(0xf0, 0xf6, 0xfc),
            dim: RGBColor(0x91, 0x98, 0xa1),
            line: RGBColor(0x3d, 0x44, 0x4d),
            ours: RGBColor(0x44, 0x93, 0xf8),
        },
    ),
];

fn text(size: i32, colour: &RGBColor, style: FontStyle) -> TextStyle<'_> {
    let font = ("sans-serif", size)
        .into_font()
        .style(style)
        .transform(FontTransform::None);
    TextStyle::from(font).color(colour)
}

/// A power of ten, without the digits that a figure would have.
fn scale(value: f64) -> String {
    let shown = figure(value);
    match shown.split_once('.') {
        Some((_, rest)) if rest.contains(|digit| digit != '0') => {
            shown.trim_end_matches('0').into()
        }
        Some((whole, _)) => whole.into(),
        None => shown,
    }
}

pub(crate) fn draw(path: &Path, colours: &Colours, field: &Field) -> Result<(), Failure> {
    let rows = u32::try_from(field.contenders.len())?;
    let lines = u32::try_from(SPEED.len().div_ceil(2))?;
    let root = SVGBackend::new(path, (WIDTH, lines * (rows * ROW + AROUND))).into_drawing_area();
    root.fill(&colours.ground)?;
    for (area, column) in root.split_evenly((lines as usize, 2)).iter().zip(&SPEED) {
        panel(area, colours, field, column)?;
    }
    root.present()?;
    Ok(())
}

fn panel(
    area: &DrawingArea<SVGBackend, Shift>,
    colours: &Colours,
    field: &Field,
    column: &Column,
) -> Result<(), Failure> {
    let cells = field
        .contenders
        .iter()
        .map(|of| cell(of, &field.contenders[0], column));
    let cells: Vec<_> = field
        .contenders
        .iter()
        .map(|of| of.library)
        .zip(cells)
        .collect();
    let shown = cells
        .iter()
        .filter_map(|(_, cell)| Some(cell.as_ref()?.value.max(LEAST)));
    let (low, high) = shown.fold((f64::MAX, f64::MIN), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    let (low, high) = (
        10_f64.powf(low.log10().floor()),
        10_f64.powf(high.log10().ceil()),
    );
    let high = high.max(low * 10.0);
    let better = if column.more {
        "more is better"
    } else {
        "less is better"
    };
    let mut chart = ChartBuilder::on(area)
        .margin_right(60)
        .margin_top(26)
        .x_label_area_size(20)
        .y_label_area_size(NAMES + 12)
        .build_cartesian_2d((low..high).log_scale(), 0.0..cells.len() as f64)?;
    area.draw(&Text::new(
        column.heading,
        (12, 8),
        text(13, &colours.ink, FontStyle::Bold),
    ))?;
    area.draw(&Text::new(
        better,
        (300, 9),
        text(11, &colours.dim, FontStyle::Normal),
    ))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .bold_line_style(colours.line)
        .axis_style(colours.line)
        .x_labels(4)
        .max_light_lines(0)
        .x_label_formatter(&|value| scale(*value))
        .x_label_style(text(10, &colours.dim, FontStyle::Normal))
        .draw()?;
    for (row, (library, cell)) in cells.iter().enumerate() {
        let at = (cells.len() - row) as f64 - 0.5;
        let (colour, style) = match cell {
            _ if row == 0 => (&colours.ours, FontStyle::Bold),
            Some(cell) if cell.ahead => (&colours.ink, FontStyle::Bold),
            _ => (&colours.dim, FontStyle::Normal),
        };
        let plot = chart.plotting_area();
        plot.draw(
            &(EmptyElement::at((low, at))
                + Text::new(*library, (-NAMES, -5), text(12, colour, style))),
        )?;
        let Some(cell) = cell else {
            plot.draw(
                &(EmptyElement::at((low, at)) + Text::new("–", (9, -5), text(11, colour, style))),
            )?;
            continue;
        };
        let value = cell.value.max(LEAST);
        plot.draw(&PathElement::new(
            [(low, at), (value, at)],
            colour.stroke_width(1),
        ))?;
        plot.draw(&Circle::new((value, at), 4, colour.filled()))?;
        plot.draw(
            &(EmptyElement::at((value, at))
                + Text::new(figure(cell.value), (9, -5), text(11, colour, style))),
        )?;
    }
    Ok(())
}
