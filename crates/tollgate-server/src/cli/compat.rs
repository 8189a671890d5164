//! Settings that envoyproxy/ratelimit and Limitador read from their environment and flags, not from their files.

use clap::Args;
use clap::builder::BoolishValueParser;

use tollgate_compat::Options;

/// Options for answers by a compat configuration.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Compatibility: for configurations of envoyproxy/ratelimit and Limitador")]
pub struct CompatArguments {
    /// Answer with rate-limit headers for the client, as the configuration's own program names them
    #[arg(long, env = "TOLLGATE_RLS_HEADERS", value_parser = BoolishValueParser::new(), hide_short_help = true)]
    pub rls_headers: bool,
    /// Refuse nothing: count, and report in the single statuses what would be refused
    #[arg(long, env = "TOLLGATE_RLS_SHADOW", value_parser = BoolishValueParser::new(), hide_short_help = true)]
    pub rls_shadow: bool,
    /// Treat every rule as one with quota_mode
    #[arg(long, env = "TOLLGATE_RLS_QUOTA", value_parser = BoolishValueParser::new(), hide_short_help = true)]
    pub rls_quota: bool,
    /// The maximum of a limit that a request brings along; larger ones are lowered to it
    #[arg(long, value_name = "N", env = "TOLLGATE_RLS_OVERRIDE_MAX", default_value_t = u32::MAX, hide_default_value = true, hide_short_help = true)]
    pub rls_override_max: u32,
}

impl CompatArguments {
    pub(crate) fn options(&self) -> Options {
        Options {
            has_headers: self.rls_headers,
            is_shadow: self.rls_shadow,
            is_quota: self.rls_quota,
            override_max: self.rls_override_max,
        }
    }
}
