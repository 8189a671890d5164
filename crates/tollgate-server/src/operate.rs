//! The commands that operate a running server: each becomes a request to its admin API, and the answer becomes a table.

mod client;
mod screen;
mod secure;
mod show;
mod table;
mod top;
mod tail;

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
use crate::{FAILURE, SUCCESS};

/// Runs one of the commands, and returns its exit status.
///
/// # Errors
/// When the server could not be asked, or refused.
pub(crate) fn run(command: &OperateCommand, console: &mut Console) -> Result<u8, String> {
    blocking(async {
        match command {
            OperateCommand::Top(arguments) => top::top(arguments, console).await,
            OperateCommand::Tail(arguments) => tail::tail(arguments, console).await,
            _ => once(command, console).await,
        }
    })?
}

/// Runs an asynchronous command to its end.
///
/// # Errors
/// When the system gives no runtime.
pub(crate) fn blocking<F: Future>(command: F) -> Result<F::Output, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        format!("the system gives no runtime: {}; free some resources and try again", plain_cause(&error))
    })?;
    Ok(runtime.block_on(command))
}

/// Sends one request, and prints its answer.
async fn once(command: &OperateCommand, console: &mut Console) -> Result<u8, String> {
    let AdminRequest { server, method, path, body, show, is_change } = admin_request(command)?;
    let client = Client::new(server)?;
    if is_change {
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
    let is_reset = matches!(command, OperateCommand::Reset(_));
    let is_void =
        [done("unblocked"), done("restored")].contains(&Some(false)) || (is_reset && answer["counters"] == 0);
    if let Some(notice) = answer["notice"].as_str().filter(|_| !server.json && !is_void) {
        console.line(plain(notice));
    }
    if let Some(warning) = answer["warning"].as_str() {
        console.warning(format_args!("{}", plain(warning)));
    }
    // `get` and `explain` answer as `decide` does: whether such a request passes.
    let is_denied =
        matches!(command, OperateCommand::Get(_) | OperateCommand::Explain(_)) && answer["allowed"] == false;
    Ok(if is_void || is_denied { FAILURE } else { SUCCESS })
}

struct AdminRequest<'a> {
    server: &'a ServerArguments,
    method: &'static str,
    path: String,
    body: Option<Value>,
    show: Show,
    /// Whether it changes the server.
    is_change: bool,
}

/// Prints an answer.
type Show = fn(&Value, &mut Console);

impl<'a> AdminRequest<'a> {
    fn get(server: &'a ServerArguments, path: &str, show: Show) -> Self {
        Self { server, method: "GET", path: path.to_owned(), body: None, show, is_change: false }
    }

    /// A request whose body says what it is about.
    fn ask(server: &'a ServerArguments, path: &str, body: Value, show: Show) -> Self {
        Self { method: "POST", body: Some(body), ..Self::get(server, path, show) }
    }

    fn change(server: &'a ServerArguments, path: &str, body: Value, show: Show) -> Self {
        Self { is_change: true, ..Self::ask(server, path, body, show) }
    }
}

fn admin_request(command: &OperateCommand) -> Result<AdminRequest<'_>, String> {
    Ok(match command {
        OperateCommand::Get(get) => {
            let body = json!({ "attributes": attributes(&get.key.attributes)? });
            AdminRequest::ask(
                &get.key.server,
                &format!("/admin/v1/get?{}", get.nodes.query()),
                body,
                show::state,
            )
        }
        OperateCommand::Explain(explain) => {
            let body = json!({ "attributes": attributes(&explain.attributes)?, "cost": explain.cost });
            let path = format!("/admin/v1/explain?{}", explain.nodes.query());
            AdminRequest::ask(&explain.server, &path, body, show::explanation)
        }
        OperateCommand::Reset(reset) => {
            let body = json!({ "attributes": attributes(&reset.key.attributes)?, "limits": reset.limits });
            AdminRequest::change(&reset.key.server, "/admin/v1/reset", body, show::reset)
        }
        OperateCommand::Block(block) => {
            let body = json!({
                "attributes": attributes(&block.key.attributes)?, "for": block.lasting, "note": block.note,
                "anyway": block.anyway,
            });
            AdminRequest::change(&block.key.server, "/admin/v1/block", body, show::block)
        }
        OperateCommand::Unblock(key) => {
            let body = json!({ "attributes": attributes(&key.attributes)? });
            AdminRequest::change(&key.server, "/admin/v1/unblock", body, show::unblocked)
        }
        OperateCommand::Kill(kill) => {
            AdminRequest::change(&kill.server, "/admin/v1/kill", override_body(kill), show::overridden)
        }
        OperateCommand::Shadow(shadow) => {
            AdminRequest::change(&shadow.server, "/admin/v1/shadow", override_body(shadow), show::overridden)
        }
        OperateCommand::Percent(percent) => {
            let body = json!({
                "limit": percent.limit, "all": percent.all, "percent": percent.percent, "for": percent.lasting,
                "note": percent.note,
            });
            AdminRequest::change(&percent.server, "/admin/v1/percent", body, show::overridden)
        }
        OperateCommand::Restore(restore) => {
            let scope = &restore.scope;
            let body = json!({ "limit": scope.limit, "all": scope.all, "overload": scope.overload });
            AdminRequest::change(&restore.server, "/admin/v1/restore", body, show::restored)
        }
        OperateCommand::Reload(reload) => AdminRequest::change(
            &reload.server,
            "/admin/v1/reload",
            json!({ "force": reload.force }),
            show::reloaded,
        ),
        OperateCommand::Limits(list) => AdminRequest::get(&list.server, "/admin/v1/limits", show::limits),
        OperateCommand::Audit(audit) => {
            let path = format!("/admin/v1/audit?limit=1000&{}", audit.nodes.query());
            AdminRequest::get(&audit.server, &path, show::audit)
        }
        OperateCommand::Fleet(list) => AdminRequest::get(&list.server, "/admin/v1/fleet", show::fleet),
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
