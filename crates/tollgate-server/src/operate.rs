//! The commands that operate a running server: each becomes a request to its admin API, and the answer becomes a table.

mod client;
mod screen;
mod secure;
mod show;
mod table;
mod monitor;

use serde_json::{Map, Value, json};

pub(crate) use client::Client;
pub(crate) use show::show_fields;
pub(crate) use table::{cell, table};

use crate::cli::{
    GivenAttribute, GivenValue, OperateCommand, OverrideArguments, ScopeArguments, ServerArguments,
};
use crate::console::Console;
use crate::disk::plain_cause;
use crate::text::plain;
use crate::{FAILURE, SUCCESS, USAGE};

/// Runs one of the commands, and returns its exit status.
pub(crate) fn run(command: &OperateCommand, console: &mut Console) -> u8 {
    blocking(console, async |console| match command {
        OperateCommand::Top(arguments) => monitor::top(arguments, console).await,
        OperateCommand::Tail(arguments) => monitor::tail(arguments, console).await,
        _ => once(command, console).await,
    })
}

/// Runs an asynchronous command to its end.
pub(crate) fn blocking(
    console: &mut Console,
    conversation: impl AsyncFnOnce(&mut Console) -> Result<u8, String>,
) -> u8 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(conversation(console)),
        Err(error) => Err(format!("the system gives no runtime: {}", plain_cause(&error))),
    };
    match ended {
        Ok(status) => status,
        Err(problem) => {
            console.error(problem);
            USAGE
        }
    }
}

/// Sends one request, and prints its answer.
async fn once(command: &OperateCommand, console: &mut Console) -> Result<u8, String> {
    let AdminRequest { server, method, path, body, show } = admin_request(command)?;
    let client = Client::new(server)?;
    if is_change(command) {
        client.is_meant()?;
    }
    let answer = match client.call(method, &path, body.as_ref()).await {
        // A file with errors, as `policy check` would find it.
        Err(error) if error.is_conflict && matches!(command, OperateCommand::Reload(_)) => {
            console.error(String::from(error));
            return Ok(FAILURE);
        }
        answer => answer?,
    };
    if let Some(notice) = client.notice() {
        console.warning(notice);
    }
    if server.json {
        console.line(&answer);
    } else {
        show(&answer, console);
    }
    let done = |name: &str| answer.get(name).and_then(Value::as_bool);
    // If there was nothing to remove, the status is a failure, for scripts.
    let is_void = [done("unblocked"), done("restored")].contains(&Some(false));
    if let Some(notice) = answer["notice"].as_str().filter(|_| !server.json && !is_void) {
        console.line(plain(notice));
    }
    if let Some(warning) = answer["warning"].as_str() {
        console.warning(format_args!("{}", plain(warning)));
    }
    // `get` and `explain` answer as `decide` does: whether such a request passes.
    let is_denied =
        matches!(command, OperateCommand::Get(_) | OperateCommand::Explain(_)) && answer["allowed"] == false;
    // A key that no request can have has no counters.
    let is_unknown = answer["counters"] == 0 && answer["unknown_credential"] == true;
    Ok(if is_void || is_denied || is_unknown { FAILURE } else { SUCCESS })
}

/// Whether a command changes the server.
const fn is_change(command: &OperateCommand) -> bool {
    match command {
        OperateCommand::Get(_) | OperateCommand::Explain(_) | OperateCommand::Limits(_) => false,
        OperateCommand::Top(_) | OperateCommand::Tail(_) => false,
        OperateCommand::Audit(_) | OperateCommand::Fleet(_) => false,
        OperateCommand::Reset(_) | OperateCommand::Block(_) | OperateCommand::Unblock(_) => true,
        OperateCommand::Kill(_) | OperateCommand::Shadow(_) | OperateCommand::Percent(_) => true,
        OperateCommand::Restore(_) | OperateCommand::Reload(_) => true,
    }
}

struct AdminRequest<'a> {
    server: &'a ServerArguments,
    method: &'static str,
    path: String,
    body: Option<Value>,
    show: fn(&Value, &mut Console),
}

fn admin_request(command: &OperateCommand) -> Result<AdminRequest<'_>, String> {
    let get = |server, path: &str, show| AdminRequest {
        server,
        method: "GET",
        path: path.to_owned(),
        body: None,
        show,
    };
    let post = |server, path: &str, body, show| AdminRequest {
        server,
        method: "POST",
        path: path.to_owned(),
        body: Some(body),
        show,
    };
    Ok(match command {
        OperateCommand::Get(get) => {
            let body = json!({ "attributes": attributes(&get.key.attributes)? });
            post(&get.key.server, &format!("/admin/v1/get?{}", get.nodes.query()), body, show::state)
        }
        OperateCommand::Explain(explain) => {
            let body = json!({ "attributes": attributes(&explain.attributes)?, "cost": explain.cost });
            let path = format!("/admin/v1/explain?{}", explain.nodes.query());
            post(&explain.server, &path, body, show::explanation)
        }
        OperateCommand::Reset(reset) => {
            let body = json!({ "attributes": attributes(&reset.key.attributes)?, "limits": reset.limits });
            post(&reset.key.server, "/admin/v1/reset", body, show::reset)
        }
        OperateCommand::Block(block) => {
            let body = json!({
                "attributes": attributes(&block.key.attributes)?, "for": block.lasting, "note": block.note,
                "anyway": block.anyway,
            });
            post(&block.key.server, "/admin/v1/block", body, show::block)
        }
        OperateCommand::Unblock(key) => {
            let body = json!({ "attributes": attributes(&key.attributes)? });
            post(&key.server, "/admin/v1/unblock", body, show::unblocked)
        }
        OperateCommand::Kill(kill) => post(&kill.server, "/admin/v1/kill", override_body(kill), show::ruled),
        OperateCommand::Shadow(shadow) => {
            post(&shadow.server, "/admin/v1/shadow", override_body(shadow), show::ruled)
        }
        OperateCommand::Percent(percent) => {
            let body = json!({
                "limit": percent.limit, "all": percent.all, "percent": percent.percent, "for": percent.lasting,
                "note": percent.note,
            });
            post(&percent.server, "/admin/v1/percent", body, show::ruled)
        }
        OperateCommand::Restore(restore) => {
            let scope = &restore.scope;
            let body = json!({ "limit": scope.limit, "all": scope.all, "overload": scope.overload });
            post(&restore.server, "/admin/v1/restore", body, show::restored)
        }
        OperateCommand::Reload(reload) => {
            post(&reload.server, "/admin/v1/reload", json!({ "force": reload.force }), show::reloaded)
        }
        OperateCommand::Limits(list) => get(&list.server, "/admin/v1/limits", show::limits),
        OperateCommand::Audit(audit) => {
            let path = format!("/admin/v1/audit?limit=1000&{}", audit.nodes.query());
            get(&audit.server, &path, show::audit)
        }
        OperateCommand::Fleet(list) => get(&list.server, "/admin/v1/fleet", show::fleet),
        OperateCommand::Top(_) | OperateCommand::Tail(_) => {
            return Err("a live view is more than one question".to_owned());
        }
    })
}

fn override_body(OverrideArguments { scope, lasting, note, .. }: &OverrideArguments) -> Value {
    let ScopeArguments { limit, all, overload } = scope;
    json!({ "limit": limit, "all": all, "overload": overload, "for": lasting, "note": note })
}

fn attributes(given: &[GivenAttribute]) -> Result<Map<String, Value>, String> {
    let mut map = Map::new();
    for attribute in given {
        let value = match &attribute.value {
            GivenValue::Text(text) => Value::from(text.as_str()),
            GivenValue::Number(number) => Value::from(*number),
        };
        if map.insert(attribute.name.clone(), value).is_some() {
            return Err(format!("{} is given twice; give each attribute once", attribute.name));
        }
    }
    Ok(map)
}
