//! The contenders, and the question to each: 100 a second, burst 200, for each key.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_load::LoadRequest;

use crate::process::{Process, free};
use crate::{Failure, Options};

/// A way in, which several services have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Http,
    Grpc,
    Resp,
    Pipelined,
    Batch,
}

impl Wire {
    pub(crate) const ALL: [Wire; 5] = [Wire::Http, Wire::Grpc, Wire::Resp, Wire::Pipelined, Wire::Batch];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Wire::Http => "HTTP",
            Wire::Grpc => "gRPC",
            Wire::Resp => "RESP",
            Wire::Pipelined => "RESP, 16 pipelined",
            Wire::Batch => "batches",
        }
    }
}

/// One service, asked over one wire.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) wire: Wire,
    pub(crate) target: SocketAddr,
    pub(crate) question: LoadRequest,
    pub(crate) pipeline: usize,
}

/// Every service that could be started, and what to ask of it.
pub(crate) struct Field {
    pub(crate) contenders: Vec<Contender>,
    /// Name and process of each service.
    pub(crate) processes: Vec<(&'static str, Process)>,
}

const POLICY: &str = "domain: bench\nlimits:\n  - {name: per-key, by: [api_key], rate: 100/s, burst: 200}\n";
/// The generic cell rate algorithm as people write it for Redis: one key, one script, the server's clock.
const SCRIPT: &str = "local t=redis.call('TIME') local now=t[1]*1000000+t[2] \
local tat=tonumber(redis.call('GET',KEYS[1]) or now) if tat<now then tat=now end \
local new=tat+tonumber(ARGV[1]) local allow=new-tonumber(ARGV[2]) \
if now<allow then return {0,math.ceil((allow-now)/1000)} end \
redis.call('SET',KEYS[1],string.format('%.0f',new),'PX',math.ceil((new-now)/1000)) return {1,0}";

impl Field {
    /// Starts everybody.
    pub(crate) async fn start(options: &Options) -> Result<Self, Failure> {
        let mut field = Self { contenders: Vec::new(), processes: Vec::new() };
        field.tollgate(&options.tollgate).await?;
        field.echoes().await?;
        if let Some(program) = &options.throttlecrab {
            field.throttlecrab(program).await?;
        }
        field.redis().await?;
        field.contenders.retain(|contender| options.selects(contender.name));
        Ok(field)
    }

    fn add(
        &mut self,
        name: &'static str,
        wire: Wire,
        target: SocketAddr,
        question: LoadRequest,
        pipeline: usize,
    ) {
        self.contenders.push(Contender { name, wire, target, question, pipeline });
    }

    async fn tollgate(&mut self, program: &Path) -> Result<(), Failure> {
        let [http, grpc, resp] = [free()?, free()?, free()?];
        let policy = std::env::temp_dir().join(format!("tollgate-bench-{}.yaml", std::process::id()));
        std::fs::write(&policy, POLICY)?;
        let mut arguments = vec!["serve".to_owned(), "--memory".to_owned(), "256MiB".to_owned()];
        let policy_text = policy.display().to_string();
        for (flag, value) in [
            ("--policy", policy_text),
            ("--http", http.to_string()),
            ("--grpc", grpc.to_string()),
            ("--resp", resp.to_string()),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        let process = Process::start(program, &arguments, &[http, grpc, resp]).await;
        let _ = std::fs::remove_file(&policy);
        self.processes.push(("tollgate", process?));
        let check = LoadRequest::Http {
            path: "/v1/check".to_owned(),
            body: r#"{"attributes":{"api_key":"{key}"}}"#.to_owned(),
            decisions: 1,
        };
        let rls = LoadRequest::Rls { domain: "bench".to_owned(), attribute: "api_key".to_owned() };
        let throttle = words(&["CL.THROTTLE", "{key}", "199", "100", "1"]);
        let tg_check = words(&["TG.CHECK", "api_key", "{key}"]);
        self.add("tollgate", Wire::Http, http, check, 1);
        self.add("tollgate", Wire::Grpc, grpc, rls, 1);
        self.add("tollgate CL.THROTTLE", Wire::Resp, resp, throttle.clone(), 1);
        self.add("tollgate TG.CHECK", Wire::Resp, resp, tg_check.clone(), 1);
        self.add("tollgate CL.THROTTLE", Wire::Pipelined, resp, throttle, 16);
        self.add("tollgate TG.CHECK", Wire::Pipelined, resp, tg_check.clone(), 16);
        let batch = LoadRequest::Batch { attribute: "api_key".to_owned(), size: 100 };
        self.add("tollgate HTTP batch of 100", Wire::Batch, http, batch, 1);
        self.add("tollgate TG.CHECK, 64 pipelined", Wire::Batch, resp, tg_check, 64);
        Ok(())
    }

    async fn echoes(&mut self) -> Result<(), Failure> {
        let own = std::env::current_exe()?;
        let [http, grpc] = [free()?, free()?];
        for (mode, address) in [("echo-http", http), ("echo-grpc", grpc)] {
            let arguments = [mode.to_owned(), address.to_string()];
            self.processes.push((mode, Process::start(&own, &arguments, &[address]).await?));
        }
        let body = r#"{"attributes":{"api_key":"{key}"}}"#.to_owned();
        self.add(
            "bare echo",
            Wire::Http,
            http,
            LoadRequest::Http { path: "/v1/check".to_owned(), body, decisions: 1 },
            1,
        );
        let rls = LoadRequest::Rls { domain: "bench".to_owned(), attribute: "api_key".to_owned() };
        self.add("bare echo", Wire::Grpc, grpc, rls, 1);
        Ok(())
    }

    async fn throttlecrab(&mut self, program: &Path) -> Result<(), Failure> {
        let [http, grpc, resp] = [free()?, free()?, free()?];
        let mut arguments: Vec<String> = Vec::new();
        for (wire, address) in [("http", http), ("grpc", grpc), ("redis", resp)] {
            arguments.push(format!("--{wire}"));
            arguments.push(format!("--{wire}-host={}", address.ip()));
            arguments.push(format!("--{wire}-port={}", address.port()));
        }
        arguments.extend(["--store-capacity=2000000".to_owned(), "--log-level=error".to_owned()]);
        self.processes
            .push(("throttlecrab", Process::start(program, &arguments, &[http, grpc, resp]).await?));
        let body = r#"{"key":"{key}","max_burst":200,"count_per_period":100,"period":1}"#.to_owned();
        self.add(
            "throttlecrab",
            Wire::Http,
            http,
            LoadRequest::Http { path: "/throttle".to_owned(), body, decisions: 1 },
            1,
        );
        // max_burst = 200, count_per_period = 100, period = 1, quantity = 1
        let rest = Bytes::from_static(&[0x10, 0xc8, 0x01, 0x18, 0x64, 0x20, 0x01, 0x28, 0x01]);
        let path = "/throttlecrab.RateLimiter/Throttle".to_owned();
        self.add("throttlecrab", Wire::Grpc, grpc, LoadRequest::Grpc { path, rest }, 1);
        let throttle = words(&["THROTTLE", "{key}", "200", "100", "1"]);
        self.add("throttlecrab", Wire::Resp, resp, throttle.clone(), 1);
        self.add("throttlecrab", Wire::Pipelined, resp, throttle, 16);
        Ok(())
    }

    async fn redis(&mut self) -> Result<(), Failure> {
        let address = free()?;
        let port = address.port().to_string();
        let arguments = ["--port", port.as_str(), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"];
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let process = Process::start(&PathBuf::from("redis-server"), &arguments, &[address]).await?;
        self.processes.push(("redis-server", process));
        let sha = load_script(address).await?;
        // An interval of 10 ms, and 199 of them in advance, in microseconds.
        let script = words(&["EVALSHA", &sha, "1", "{key}", "10000", "2000000"]);
        self.add("redis-server EVALSHA", Wire::Resp, address, script.clone(), 1);
        self.add("redis-server EVALSHA", Wire::Pipelined, address, script, 16);
        Ok(())
    }
}

fn words(words: &[&str]) -> LoadRequest {
    LoadRequest::Resp { words: words.iter().map(|&word| word.to_owned()).collect() }
}

async fn load_script(address: SocketAddr) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(address).await?;
    let command = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n{SCRIPT}\r\n", SCRIPT.len());
    stream.write_all(command.as_bytes()).await?;
    let mut answer = [0; 256];
    let length = stream.read(&mut answer).await?;
    let text = std::str::from_utf8(&answer[..length])?;
    let sha = text.lines().nth(1).filter(|line| line.len() == 40);
    sha.map(str::to_owned).ok_or_else(|| format!("redis-server did not take the script: {text}").into())
}
