//! Tries out the program `tollgate`: it checks a policy, decides, serves over HTTP, and stops when it is asked to.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use super::shell::{Shell, now, pause, signal, wait};

const POLICY: &str = "limits:\n  - {name: per-key, by: [api_key], rate: 2/h}\n";
/// How long the server may take to start, to answer, and to stop.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Checks that a program is a working Tollgate.
pub(crate) fn try_out(shell: &mut Shell, program: &Path) -> Result<(), String> {
    let folder = shell.directories.target.join(format!("try-out-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let result = try_commands(shell, program, &folder).and_then(|()| try_server(shell, program, &folder));
    let _ = fs::remove_dir_all(&folder);
    result
}

fn try_commands(shell: &mut Shell, program: &Path, folder: &Path) -> Result<(), String> {
    let policy = folder.join("policy.yaml");
    fs::write(&policy, POLICY).map_err(|error| format!("cannot write {}: {error}", policy.display()))?;
    let mut check = started_with(shell, program, "policy check");
    check.arg(&policy);
    let printed = shell.output_of(check)?;
    expect(shell, "policy check", "each api_key may make 2 requests an hour", &printed)?;
    let mut decide = started_with(shell, program, "decide --policy");
    decide.arg(&policy).arg("api_key=k1");
    let printed = shell.output_of(decide)?;
    expect(shell, "decide", "allow", &printed)
}

fn try_server(shell: &mut Shell, program: &Path, folder: &Path) -> Result<(), String> {
    let mut server = Server::start(shell, program, folder)?;
    let question = r#"{"attributes":{"api_key":"k1"}}"#;
    let denied = r#"tollgate_decisions_total{outcome="deny",wire="http"} 1"#;
    for (what, wanted, method, path, body) in [
        ("GET /healthz", "200 OK", "GET", "/healthz", ""),
        ("first check", r#""allowed":true"#, "POST", "/v1/check", question),
        ("second check", r#""allowed":true"#, "POST", "/v1/check", question),
        ("third check", r#""allowed":false"#, "POST", "/v1/check", question),
        ("another key", r#""allowed":true"#, "POST", "/v1/check", r#"{"attributes":{"api_key":"k2"}}"#),
        ("GET /metrics", denied, "GET", "/metrics", ""),
        ("no JSON", "400 Bad Request", "POST", "/v1/check", "{"),
    ] {
        let answer = ask(server.port, method, path, body).map_err(|error| format!("{what}: {error}"))?;
        expect(shell, what, wanted, &answer)?;
    }
    signal("TERM", &[server.child.id()]);
    let status = wait(&mut server.child, TIMEOUT).ok_or("the server does not stop")?;
    shell.print(&format!("stopped: {status}"));
    if status.success() { Ok(()) } else { Err(format!("the server stopped with {status}")) }
}

fn started_with(shell: &Shell, program: &Path, words: &str) -> Command {
    let mut command = shell.command("env");
    command.arg(program).args(words.split(' '));
    command
}

/// Looks for a text in what was printed.
fn expect(shell: &mut Shell, what: &str, wanted: &str, printed: &str) -> Result<(), String> {
    if printed.contains(wanted) {
        shell.print(&format!("{what}: ok"));
        return Ok(());
    }
    Err(format!("{what}: expected {wanted}, and it printed:\n{printed}"))
}

/// A running server, killed when it is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(shell: &mut Shell, program: &Path, folder: &Path) -> Result<Self, String> {
        let mut command =
            started_with(shell, program, "serve --http 127.0.0.1:0 --grpc off --resp off --policy");
        let (out, err) = (folder.join("out"), folder.join("err"));
        let create = |path: &Path| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
        command.arg(folder.join("policy.yaml")).stdout(create(&out)?).stderr(create(&err)?);
        let child =
            command.spawn().map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
        let mut server = Self { child, port: 0 };
        let deadline = now() + TIMEOUT;
        while now() < deadline && !matches!(server.child.try_wait(), Ok(Some(_))) {
            let printed = fs::read_to_string(&out).unwrap_or_default();
            if let Some(port) = port_in(&printed) {
                server.port = port;
                return Ok(server);
            }
            pause(Duration::from_millis(20));
        }
        let printed = [out, err].map(|path| fs::read_to_string(path).unwrap_or_default()).concat();
        Err(format!("the server did not start:\n{printed}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The port that a server prints when it listens.
fn port_in(printed: &str) -> Option<u16> {
    let (_, rest) = printed.split_once("http://127.0.0.1:")?;
    let end = rest.find(|letter: char| !letter.is_ascii_digit())?;
    rest[..end].parse().ok()
}

/// Sends one HTTP request and returns the whole answer.
fn ask(port: u16, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line may be read before it is complete.
    #[test]
    fn the_port_is_read_once_it_is_whole() {
        assert_eq!(port_in("listening on http://127.0.0.1:8080/ and\n"), Some(8080));
        assert_eq!(port_in("listening on http://127.0.0.1:80"), None);
        assert_eq!(port_in("starting"), None);
    }
}
