//! The packages in `clients/`, installed from the tree as their users install them: type-checked, their READMEs followed, and tried out
//! against the real server with the programs in `e2e/clients`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cached::{cached, succeeds};
use crate::guide::{GUIDE_ADDRESS, Last, blocks, first};
use crate::program::Server;
use crate::proxy::{Folder, Proxy, file, free_port};

const PYTHON_GUIDE: &str = include_str!("../../../clients/python/README.md");
const TYPESCRIPT_GUIDE: &str = include_str!("../../../clients/typescript/README.md");

const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 3/h}
  - {name: plan, by: [customer], tier_by: plan, tiers: {suspended: deny, free: 3/h}}
  - {name: tokens, by: [tenant], rate: 1000/h}
  - {name: in-flight, by: [worker], concurrency: 1, permit_ttl: 30s}
  - {name: login, by: [account], rate: 2/h, count: failures}
  - {name: shaped, by: [queue], algorithm: leaky-bucket, rate: 2/s, queue: 5}
";

const TSCONFIG: &str = r#"{"include": ["*.ts"], "compilerOptions": {
    "strict": true, "noUncheckedIndexedAccess": true, "exactOptionalPropertyTypes": true, "target": "ES2022",
    "lib": ["ES2022", "ESNext.Disposable"], "types": ["node"], "module": "NodeNext", "rootDir": ".", "outDir": "out"}}"#;

/// A package, installed into a folder, and the programs that use it.
struct Installed {
    folder: Folder,
}

impl Installed {
    /// `pip install ./clients/python`, into a folder of the test's own. What builds it is installed already.
    fn python(name: &str) -> Self {
        let folder = Folder::new(name);
        let mut pip = Command::new(cached("clients/bin/pip"));
        pip.args(["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target"]);
        succeeds(pip.arg(folder.0.join("installed")).arg(file("clients/python")));
        Self { folder }
    }

    /// `npm install ./clients/typescript`, in a folder of the test's own, beside Express and the types of others.
    fn typescript(name: &str) -> Self {
        let folder = Folder::new(name);
        folder.write("package.json", r#"{"type": "module"}"#);
        folder.write("tsconfig.json", TSCONFIG);
        let mut npm = Command::new("npm");
        npm.args(["install", "--offline", "--no-audit", "--no-fund"]).arg(file("clients/typescript"));
        succeeds(npm.current_dir(&folder.0));
        for package in ["express", "@types"] {
            let from = cached("node/node_modules").join(package).canonicalize().unwrap();
            std::os::unix::fs::symlink(from, folder.0.join("node_modules").join(package)).unwrap();
        }
        Self { folder }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(cached("clients/bin").join(program));
        command.env("PYTHONPATH", self.folder.0.join("installed")).env("PYTHONDONTWRITEBYTECODE", "1");
        command.current_dir(&self.folder.0);
        command
    }

    /// Checks the types of a Python file.
    fn mypy(&self, path: &Path) {
        let mut mypy = self.command("mypy");
        mypy.args(["--strict", "--cache-dir"]).arg(self.folder.0.join("mypy"));
        succeeds(mypy.arg(path));
    }

    /// Checks the types of every `.ts` file in the folder, and makes JavaScript of them.
    fn compile(&self) {
        succeeds(
            Command::new(cached("node/node_modules/.bin/tsc")).args(["-p", "."]).current_dir(&self.folder.0),
        );
    }

    fn node(&self, name: &str) -> Command {
        let mut node = Command::new("node");
        node.arg(self.folder.0.join("out").join(format!("{name}.js"))).current_dir(&self.folder.0);
        node
    }

    /// Checks the types of a program in Python, runs it, and returns what it prints.
    fn run_python(&self, text: &str) -> String {
        let path = self.folder.write("block.py", text);
        self.mypy(&path);
        succeeds(self.command("python").arg(path))
    }

    /// The same in TypeScript.
    fn run_typescript(&self, text: &str) -> String {
        self.folder.write("block.ts", text);
        self.compile();
        succeeds(&mut self.node("block"))
    }
}

/// Both packages.
pub(crate) struct Packages {
    python: Installed,
    typescript: Installed,
}

impl Packages {
    pub(crate) fn install(name: &str) -> Self {
        Self {
            python: Installed::python(&format!("{name}-python")),
            typescript: Installed::typescript(&format!("{name}-typescript")),
        }
    }

    /// Follows a guide's commands and programs, and compares what it shows with what comes out, this often.
    pub(crate) fn follow(&self, guide: &str, compared: usize) {
        let blocks = blocks(guide);
        let server = Server::start(first(&blocks, "yaml"));
        let address = server.address.to_string();
        let mut last = Last::default();
        for (language, block) in &blocks {
            let text = block.replace(GUIDE_ADDRESS, &address);
            match *language {
                "sh" => last.ran(block, succeeds(Command::new("sh").args(["-euc", &text]))),
                "python" => last.ran(block, self.python.run_python(&text)),
                "typescript" => last.ran(block, self.typescript.run_typescript(&text)),
                "go" => last.ran(block, run_go(&text)),
                _ => last.compare(language, block),
            }
        }
        assert_eq!(last.compared, compared);
    }
}

/// Runs a Go program. What it compiles of Go's library is kept for the next run.
fn run_go(program: &str) -> String {
    let folder = Folder::new("go");
    let file = folder.write("main.go", program);
    let mut command = Command::new("go");
    command.arg("run").arg(file).env("GOTOOLCHAIN", "local");
    succeeds(command.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go")))
}

/// Asks a web application through its middleware, twice as its policy admits and then once more; then without a server to ask.
fn assert_limits(app: &Proxy, server: Server) {
    let ask = |fields: &str| app.get("/hello", fields);
    for remaining in ["1", "0"] {
        let passed = ask("X-API-Key: k\r\n");
        assert_eq!((passed.status, passed.body.as_slice()), (200, br#""hello""#.as_slice()));
        assert_eq!(passed.header("x-ratelimit-remaining"), Some(remaining));
    }
    let refused = ask("X-API-Key: k\r\n");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1_700);
    assert!(refused.header("ratelimit").unwrap().starts_with("\"per-key\";r=0;"));
    let problem: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((problem["status"].as_u64(), problem["retryable"].as_bool()), (Some(429), Some(true)));
    assert_eq!(
        (&problem["cause"], &problem["reason"]),
        (&"per-key".into(), &"2 requests an hour, burst 2".into())
    );
    assert!(problem["retry-after-ms"].as_u64().unwrap() > 1_000_000, "{problem}");
    assert!(problem.get("detail").is_none(), "{problem}");
    // The story: without a key nothing was asked, so every request passed. It counts by address.
    assert_eq!([ask("").status, ask("X-API-Key: \r\n").status, ask("").status], [200, 200, 429]);
    assert!(ask("").header("ratelimit").unwrap().starts_with("\"no-key\";r=0;"));
    // Another key has its own counter.
    assert_eq!(ask("X-API-Key: other\r\n").header("x-ratelimit-remaining"), Some("1"));
    drop(server);
    let passed = ask("X-API-Key: k\r\n");
    assert_eq!((passed.status, passed.header("ratelimit")), (200, None));
}

/// Typed strictly, and what its programs say of decisions, errors and failing servers is true.
#[test]
fn the_python_client_works() {
    let (installed, server) = (Installed::python("python-client"), Server::start(POLICY));
    let program = file("e2e/clients/python_client.py");
    // With the synchronous client, which the build makes of the asynchronous one.
    installed.mypy(&installed.folder.0.join("installed/tollgate_client"));
    installed.mypy(&program);
    let mut python = installed.command("python");
    assert_eq!(succeeds(python.arg(program).arg(format!("http://{}", server.address))), "fine\n");
}

/// Requests to the application of the README without a server: `TestClient` runs each in an event loop of its own. Once
/// the second failed, on a connection of the first loop.
const TESTED: &str = r#"
import asyncio
from fastapi.testclient import TestClient
from guide_app import app, tollgate

client = TestClient(app)
for remaining in ("1", "0"):
    response = client.get("/hello", headers={"x-api-key": "tested"})
    assert (response.status_code, response.headers["x-ratelimit-remaining"]) == (200, remaining)
assert client.get("/hello", headers={"x-api-key": "tested"}).status_code == 429


async def ask() -> bool:
    return (await tollgate.check({"api_key": "loops"})).made_by_server


assert [asyncio.run(ask()) for _ in range(3)] == [True] * 3
print("fine")
"#;

/// The application of its README limits, behind a server and in tests without one.
#[test]
fn the_middleware_of_fastapi_limits() {
    let installed = Installed::python("fastapi");
    let blocks = blocks(PYTHON_GUIDE);
    let server = Server::start(first(&blocks, "yaml"));
    let app = first(&blocks, "python app").replace(GUIDE_ADDRESS, &server.address.to_string());
    installed.mypy(&installed.folder.write("guide_app.py", &app));
    assert_eq!(installed.run_python(TESTED), "fine\n");
    let port = free_port();
    let mut uvicorn = installed.command("uvicorn");
    uvicorn
        .args(["guide_app:app", "--log-level", "warning", "--port", &port.to_string()])
        .stderr(Stdio::null());
    assert_limits(&Proxy::start(uvicorn, port), server);
}

/// `pip install -e ./clients/python`: its synchronous half is made in the sources, too.
#[test]
fn the_python_client_can_be_edited() {
    let folder = Folder::new("python-editable");
    succeeds(Command::new("cp").arg("-r").args([&file("clients/python"), &folder.0.join("python")]));
    let made = folder.0.join("python/src/tollgate_client/blocking.py");
    let _ = std::fs::remove_file(&made);
    succeeds(Command::new(cached("clients/bin/python")).args(["-m", "venv"]).arg(folder.0.join("venv")));
    let mut pip = Command::new(folder.0.join("venv/bin/pip"));
    pip.args(["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable"]);
    // What builds it, and what it needs, is installed there.
    let purelib = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let packages = succeeds(Command::new(cached("clients/bin/python")).args(["-c", purelib]));
    let mut python = Command::new(folder.0.join("venv/bin/python"));
    python.args([
        "-c",
        "import tollgate_client; print(tollgate_client.Tollgate.__module__, tollgate_client.__file__)",
    ]);
    succeeds(pip.arg(folder.0.join("python")).env("PYTHONPATH", packages.trim()));
    let printed = succeeds(python.env("PYTHONPATH", packages.trim()));
    let sources = folder.0.join("python/src/tollgate_client/__init__.py");
    assert_eq!(printed, format!("tollgate_client.blocking {}\n", sources.display()));
    assert!(made.is_file());
}

/// Typed strictly, what is installed is what its sources give, and what its program says is true.
#[test]
fn the_typescript_client_works() {
    let (installed, server) = (Installed::typescript("typescript-client"), Server::start(POLICY));
    let (built, package) = (installed.folder.0.join("dist"), file("clients/typescript"));
    succeeds(
        Command::new(cached("node/node_modules/.bin/tsc"))
            .arg("-p")
            .arg(&package)
            .arg("--outDir")
            .arg(&built),
    );
    for name in ["index.js", "index.d.ts", "express.js", "express.d.ts"] {
        let [built, shipped] = [built.join(name), package.join("dist").join(name)]
            .map(|path| std::fs::read_to_string(path).unwrap());
        assert!(built == shipped, "dist/{name} is old: run `npm run build` in clients/typescript");
    }
    let program = file("e2e/clients/typescript_client.ts");
    std::fs::copy(program, installed.folder.0.join("client.ts")).unwrap();
    installed.compile();
    let output = succeeds(installed.node("client").arg(format!("http://{}", server.address)));
    assert_eq!(output, "fine\n");
}

/// The application of its README limits.
#[test]
fn the_middleware_of_express_limits() {
    let installed = Installed::typescript("express-client");
    let blocks = blocks(TYPESCRIPT_GUIDE);
    let server = Server::start(first(&blocks, "yaml"));
    let port = free_port();
    let app = first(&blocks, "typescript app").replace(GUIDE_ADDRESS, &server.address.to_string());
    assert!(app.contains("3000"));
    installed.folder.write("app.ts", &app.replace("3000", &port.to_string()));
    installed.compile();
    let mut node = installed.node("app");
    node.stderr(Stdio::null());
    assert_limits(&Proxy::start(node, port), server);
}

/// The blocks of the READMEs are typed strictly, and print what is shown.
#[test]
fn the_readmes_are_true() {
    let packages = Packages::install("readmes");
    packages.follow(PYTHON_GUIDE, 3);
    packages.follow(TYPESCRIPT_GUIDE, 3);
}
