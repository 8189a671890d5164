//! Checks the sentinels: which server they watch, and whether enough of them could replace it.

use std::collections::HashMap;

use redis::Cmd;
use tollgate_redis::Host;

use super::node::{Entrance, Node, error_text};
use super::report::{CheckFinding, Mark};

/// With fewer sentinels than this there is no majority when two disagree.
const SENTINELS_MIN: usize = 3;

/// Asks the sentinels in turn for the server that they watch.
pub(super) async fn inspect(
    sentinels: &[Host],
    service: &str,
    entrance: &Entrance<'_>,
) -> (Vec<CheckFinding>, Option<Host>) {
    let mut lines = Vec::new();
    let mut primary: Option<Host> = None;
    let mut others = 0;
    for host in sentinels {
        let node = match Node::reach(host, entrance).await {
            Ok(node) => node,
            Err(line) => {
                lines.push(CheckFinding { mark: Mark::Warn, check: "sentinels", ..line });
                continue;
            }
        };
        match asked(&node, service).await {
            Ok((found, known)) => {
                if primary.as_ref().is_some_and(|primary| *primary != found) {
                    let text = format!("{host} names another primary than the others: {found}");
                    lines.push(
                        CheckFinding::new(Mark::Fail, "sentinels", text)
                            .cured_by("wait for them to agree; if they do not, SENTINEL RESET at that one"),
                    );
                }
                primary.get_or_insert(found);
                others = others.max(known);
                lines.extend(quorum(&node, service).await);
            }
            Err(line) => lines.push(line),
        }
    }
    if let Some(primary) = &primary {
        let found = format!("{} know {} at {primary}", others + 1, service);
        lines.push(match others + 1 {
            SENTINELS_MIN.. => CheckFinding::ok("sentinels", found),
            _ => CheckFinding::new(Mark::Warn, "sentinels", found)
                .cured_by("run at least three, on machines of their own"),
        });
    } else if lines.iter().all(|line| line.mark != Mark::Fail) {
        lines.push(
            CheckFinding::new(Mark::Fail, "sentinels", "none of them can be asked")
                .cured_by("see the lines above"),
        );
    }
    (lines, primary)
}

fn about(what: &str, service: &str) -> Cmd {
    let mut command = redis::cmd("SENTINEL");
    command.arg(what).arg(service);
    command
}

/// The primary, and how many other sentinels this one knows.
async fn asked(node: &Node, service: &str) -> Result<(Host, usize), CheckFinding> {
    let fail = |found: String, cure: String| CheckFinding::new(Mark::Fail, "sentinels", found).cured_by(cure);
    let place: Option<(String, u16)> =
        node.ask(&about("get-master-addr-by-name", service)).await.map_err(|error| {
            fail(
                format!("{} does not answer as a sentinel: {}", node.host, error_text(&error)),
                "name the ports of the sentinels, 26379 as a rule".to_owned(),
            )
        })?;
    let (name, port) = place.ok_or_else(|| {
        fail(
            format!("{} knows no {service}", node.host),
            "SENTINEL MASTERS lists the names that it knows".to_owned(),
        )
    })?;
    let others: Vec<HashMap<String, String>> =
        node.ask(&about("sentinels", service)).await.unwrap_or_default();
    Ok((Host { name, port }, others.len()))
}

async fn quorum(node: &Node, service: &str) -> Option<CheckFinding> {
    let answer: Result<String, _> = node.ask(&about("ckquorum", service)).await;
    let error = answer.err()?;
    let line = CheckFinding::new(Mark::Fail, "sentinels", format!("{}: {}", node.host, error_text(&error)));
    Some(
        line.cured_by(
            "start the sentinels that are missing; until then a primary that fails is not replaced",
        ),
    )
}
