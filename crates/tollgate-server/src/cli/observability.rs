//! Arguments about logs and traces.

use clap::Args;

use crate::log::LogFormat;
use crate::telemetry::trace::{WHOLE, export};

/// The arguments of `serve` about logs and traces.
#[derive(Debug, Args)]
#[command(next_help_heading = "Telemetry")]
pub struct ObservabilityArguments {
    /// The format of the log on standard error; by default text on a terminal, else json. TOLLGATE_LOG chooses what is
    /// logged, such as info or debug
    #[arg(long, value_name = "FORMAT", env = "TOLLGATE_LOG_FORMAT", hide_short_help = true)]
    pub log_format: Option<LogFormat>,
    /// Where to send traces: an OTLP collector that accepts gRPC, such as http://127.0.0.1:4317
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_parser = export::collector, hide_short_help = true)]
    pub otlp: Option<String>,
    /// Which share of decisions is traced, from 0 to 1; denials are always traced, up to 100 in a second
    #[arg(long, value_name = "SHARE", env = "TOLLGATE_OTLP_SAMPLE", default_value = "0.001", value_parser = share, hide_short_help = true)]
    pub otlp_sample: u32,
}

/// A share in parts per million, read digit by digit so that nothing is rounded.
fn share(text: &str) -> Result<u32, String> {
    let accepted = || "accepted: a number from 0 to 1 with up to six digits, such as 0.01".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if part.len() > 6 || !is_number(whole) || !is_number(part) || whole.len() + part.len() == 0 {
        return Err(accepted());
    }
    let whole: u32 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| accepted())? };
    let part: u32 = format!("{part:0<6}").parse().map_err(|_| accepted())?;
    let share = whole.checked_mul(WHOLE).and_then(|whole| whole.checked_add(part));
    share.filter(|share| *share <= WHOLE).ok_or_else(accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares are exact to a millionth, and an invalid one is refused with what would be accepted.
    #[test]
    fn shares() {
        let cases =
            [("0", 0), ("1", WHOLE), ("1.0", WHOLE), ("0.001", 1_000), (".5", 500_000), ("0.000001", 1)];
        for (text, expected) in cases {
            assert_eq!(share(text), Ok(expected), "{text}");
        }
        for wrong in ["", ".", "-1", "1.1", "2", "0.0000001", "1e-3", "50%", "99999999999"] {
            assert!(share(wrong).is_err_and(|message| message.contains("accepted")), "{wrong}");
        }
    }
}
