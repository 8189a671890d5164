//! The SDKs of OpenAI, Anthropic and GitHub behind the outbound proxy, with a stand-in for their APIs that counts as they do and says
//! how often it had to refuse. Only the base URLs of the SDKs differ.

use std::process::Command;

use crate::cached::{cached, succeeds};
use crate::program::{Server, tollgate};
use crate::proxy::{Folder, Proxy, file, free_port};

/// As the stand-in counts: windows that begin with their first call, so that no interval may have more.
const OPENAI: &str = "limits: [{name: requests, by: [api_key], algorithm: sliding-log, rate: 5 per 2100ms}]";
const GITHUB: &str = "limits: [{name: requests, by: [host], algorithm: sliding-log, rate: 5 per 2100ms}]";

/// The proxy before the stand-in.
struct Outbound {
    server: Server,
    proxy: String,
    provider: Proxy,
    _folder: Folder,
}

impl Outbound {
    fn start(name: &str) -> Self {
        let (folder, port) = (Folder::new(name), free_port());
        let mut python = Command::new("python3");
        python.arg(file("e2e/clients/provider.py")).arg(port.to_string());
        let provider = Proxy::start(python, port);
        let policies = [("openai.yaml", OPENAI), ("github.yaml", GITHUB)];
        let [openai, github] =
            policies.map(|(name, policy)| folder.write(name, policy).display().to_string());
        let url = format!("http://{}", provider.address);
        let config = format!(
            "outbound:\n  providers:\n    openai: {{url: '{url}', policy: {openai}}}\n    anthropic: {{url: '{url}'}}\n    \
             github: {{url: '{url}', policy: {github}}}\n"
        );
        let config = folder.write("config.yaml", &config).display().to_string();
        let arguments = ["serve", "--http", "127.0.0.1:0", "--outbound", "127.0.0.1:0", "--config", &config];
        let server = Server::spawn(tollgate(&[&arguments[..], &["--policy", "-"]].concat()), "limits: []");
        let shown = server.banner.lines().find_map(|line| line.trim().strip_prefix("outbound "));
        let proxy = shown.unwrap_or_else(|| panic!("no outbound proxy in {}", server.banner)).to_owned();
        Self { server, proxy, provider, _folder: folder }
    }

    fn runs(&self, mut command: Command) {
        let output = succeeds(command.arg(&self.proxy).arg(format!("http://{}", self.provider.address)));
        assert_eq!(output, "fine\n");
    }

    /// A number of a provider in the metrics.
    fn metric(&self, name: &str, provider: &str) -> u64 {
        let start = format!("tollgate_outbound_{name}{{provider=\"{provider}\"}} ");
        let page = self.server.metrics();
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start} in {page}")).parse().unwrap()
    }
}

fn python(program: &str) -> Command {
    let mut command = Command::new(cached("sdks/bin/python"));
    command.arg(file("e2e/clients").join(program)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Calls wait, so that the provider refuses none; streams arrive as they are sent; a budget that is used up is a `RateLimitError`.
#[test]
fn the_openai_sdk_sees_no_429_that_a_wait_avoids() {
    let outbound = Outbound::start("openai-sdk");
    outbound.runs(python("openai_sdk.py"));
    assert!(outbound.metric("waited_total", "openai") > 0);
    assert_eq!(outbound.metric("throttled_total", "openai"), 1, "only the budget that was used up");
    assert!(outbound.metric("refused_total", "openai") > 2);
    assert_eq!(outbound.metric("calls_total", "anthropic"), 0);
}

/// Without a policy the proxy learns the limit from the answers; a day that is used up is a `RateLimitError`.
#[test]
fn the_anthropic_sdk_sees_no_429_that_a_wait_avoids() {
    let outbound = Outbound::start("anthropic-sdk");
    outbound.runs(python("anthropic_sdk.py"));
    assert!(outbound.metric("waited_total", "anthropic") > 0);
}

/// The pages that follow the first one go through the proxy, too.
#[test]
fn octokit_sees_no_429_that_a_wait_avoids() {
    let outbound = Outbound::start("octokit");
    let mut node = Command::new("node");
    node.arg(file("e2e/clients/octokit_sdk.mjs")).arg(cached("node"));
    outbound.runs(node);
    assert!(outbound.metric("calls_total", "github") >= 8);
}
