//! Pictures of what happened, second by second, in SVG: panels above each other, a line for each number in them, and the time of overload
//! behind them.

use std::fmt::Write as _;
use std::ops::Range;

/// One number, second by second.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) colour: &'static str,
    pub(crate) points: Vec<u64>,
}

/// Some numbers of one kind.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    /// The meaning of its height.
    pub(crate) most: u64,
    pub(crate) lines: Vec<Line>,
}

const WIDTH: u64 = 720;
const HEIGHT: u64 = 120;
const LEFT: u64 = 50;
const ABOVE: u64 = 30;
const STEP: u64 = HEIGHT + ABOVE + 20;

/// Draws the panels over so many seconds, of which some were of overload.
pub(crate) fn picture(panels: &[Panel], seconds: usize, overload: Range<usize>) -> String {
    let x = |second: usize| LEFT + second as u64 * WIDTH / seconds.max(1) as u64;
    let (wide, high) = (LEFT + WIDTH + 20, panels.len() as u64 * STEP + 20);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{wide}\" height=\"{high}\" fill=\"#ffffff\"/>\n"
    );
    for (place, panel) in panels.iter().enumerate() {
        let top = place as u64 * STEP + ABOVE;
        let bottom = top + HEIGHT;
        let (from, to) = (x(overload.start), x(overload.end));
        let _ = writeln!(
            text,
            "<rect x=\"{from}\" y=\"{top}\" width=\"{}\" height=\"{HEIGHT}\" fill=\"#fee2e2\"/>\n\
             <rect x=\"{LEFT}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#9ca3af\"/>\n\
             <text x=\"{LEFT}\" y=\"{}\">{}</text>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
             <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text>",
            to - from,
            top - 8,
            panel.title,
            LEFT - 6,
            top + 10,
            panel.most,
            LEFT - 6,
        );
        for (number, line) in panel.lines.iter().enumerate() {
            let y = |point: u64| bottom - point.min(panel.most) * HEIGHT / panel.most.max(1);
            // What was seen of a second stands in its middle.
            let middle = WIDTH / (2 * seconds.max(1) as u64);
            let points = line.points.iter().enumerate();
            let points: Vec<String> =
                points.map(|(second, &point)| format!("{},{}", x(second) + middle, y(point))).collect();
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>",
                points.join(" "),
                LEFT + WIDTH - number as u64 * 80,
                top - 8,
                line.name,
                colour = line.colour,
            );
        }
        for second in (0..=seconds).step_by(5) {
            let _ = writeln!(
                text,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#6b7280\">{second} s</text>",
                x(second),
                bottom + 14
            );
        }
    }
    text.push_str("</svg>\n");
    text
}

/// A picture has a line for each number, as high as it is, and the overload where it was.
#[test]
fn a_picture_shows_its_input() {
    let line = Line { name: "a", colour: "#000000", points: vec![0, 50, 100, 400] };
    let panels = [Panel { title: "t", most: 100, lines: vec![line] }];
    let text = picture(&panels, 4, 1..3);
    assert!(text.contains("points=\"140,150 320,90 500,30 680,30\""), "{text}");
    assert!(text.contains("<rect x=\"230\" y=\"30\" width=\"360\""), "{text}");
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
}

/// The guide shows a picture that was drawn here, of both kinds of requests.
#[test]
fn the_guide_has_its_picture() {
    let guide = include_str!("../../../../docs/overload-measured.md");
    let drawn = include_str!("../../../../docs/pictures/overload.svg");
    assert!(guide.contains("](pictures/overload.svg)"));
    assert!(
        drawn.starts_with("<svg ") && drawn.contains(">critical</text>") && drawn.contains(">test</text>")
    );
}
