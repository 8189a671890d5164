//! The contenders, and how each is set up: one worker, connections to the upstream kept, no log of requests, the upstream gets the client's
//! address, and a limit by that address (Envoy's local limit has one bucket for all).

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::process::{Core, Process, free};
use crate::{Failure, Options};

/// A program between the load and the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nobody: what the load and the upstream can do.
    Direct,
    Tollgate,
    /// Tollgate with a policy of no limits.
    Unlimited,
    Nginx,
    Envoy,
    Haproxy,
}

impl Kind {
    /// Tollgate with and without limits are neighbours, as their difference is small.
    pub(crate) const ALL: [Kind; 6] =
        [Kind::Direct, Kind::Tollgate, Kind::Unlimited, Kind::Nginx, Kind::Envoy, Kind::Haproxy];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Direct => "direct",
            Kind::Tollgate => "tollgate",
            Kind::Unlimited => "tollgate, no limits",
            Kind::Nginx => "nginx limit_req",
            Kind::Envoy => "Envoy local_ratelimit",
            Kind::Haproxy => "HAProxy stick table",
        }
    }

    /// Whether it has a limit that can refuse.
    pub(crate) const fn is_limited(self) -> bool {
        !matches!(self, Kind::Direct | Kind::Unlimited)
    }
}

/// How much passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// More than anybody asks here.
    Wide,
    /// About five at once, and hardly any more.
    Narrow,
}

/// One that was started.
pub(crate) struct Contender {
    pub(crate) kind: Kind,
    pub(crate) target: SocketAddr,
    /// None for the upstream, whose time is not compared.
    pub(crate) process: Option<Process>,
    files: PathBuf,
}

impl Drop for Contender {
    fn drop(&mut self) {
        self.process = None;
        let _ = fs::remove_dir_all(&self.files);
    }
}

impl Contender {
    /// Starts one in front of an upstream.
    pub(crate) fn start(
        options: &Options,
        kind: Kind,
        width: Width,
        upstream: SocketAddr,
    ) -> Result<Self, Failure> {
        let target = if kind == Kind::Direct { upstream } else { free()? };
        let files =
            std::env::temp_dir().join(format!("tollgate-bench-{}-{}", std::process::id(), target.port()));
        fs::create_dir_all(&files)?;
        let mut contender = Self { kind, target, process: None, files };
        let process = match kind {
            Kind::Direct => return Ok(contender),
            Kind::Tollgate => contender.tollgate(&options.tollgate, limits(width), upstream),
            Kind::Unlimited => contender.tollgate(&options.tollgate, "limits: []\n", upstream),
            Kind::Nginx => contender.nginx(width, upstream),
            Kind::Envoy => contender.envoy(&options.envoy, width, upstream),
            Kind::Haproxy => contender.haproxy(width, upstream, options.idle + 200),
        };
        contender.process = Some(process.map_err(|failure| format!("{}: {failure}", kind.name()))?);
        Ok(contender)
    }

    fn file(&self, name: &str, text: &str) -> Result<String, Failure> {
        let path = self.files.join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    fn tollgate(&self, program: &Path, policy: &str, upstream: SocketAddr) -> Result<Process, Failure> {
        let policy = self.file("policy.yaml", policy)?;
        // The load is a client as any other, not a proxy of ours whose headers are believed.
        let config =
            self.file("config.yaml", "trusted_proxies: [192.0.2.1]\nconnections_per_address: 100000\n")?;
        let (upstream, target) = (format!("http://{upstream}"), self.target.to_string());
        let arguments = [
            "serve",
            "--policy",
            &policy,
            "--config",
            &config,
            "--upstream",
            &upstream,
            "--gateway",
            &target,
            "--http",
            "127.0.0.1:0",
            "--resp",
            "off",
            "--grpc",
            "off",
        ];
        Process::start(program, &arguments.map(str::to_owned), Core::Measured, self.target)
    }

    fn nginx(&self, width: Width, upstream: SocketAddr) -> Result<Process, Failure> {
        let (rate, burst) = match width {
            Width::Wide => ("1000000r/s", 1_000_000),
            Width::Narrow => ("1r/m", 4),
        };
        let (directory, target) = (self.files.display(), self.target);
        let text = format!(
            "daemon off;\nworker_processes 1;\npid {directory}/pid;\nerror_log {directory}/error.log crit;\n\
worker_rlimit_nofile 20000;\nevents {{ worker_connections 16000; }}\nhttp {{\n  access_log off;\n\
  client_body_temp_path {directory}/body;\n  proxy_temp_path {directory}/proxy;\n  fastcgi_temp_path {directory}/fastcgi;\n\
  uwsgi_temp_path {directory}/uwsgi;\n  scgi_temp_path {directory}/scgi;\n\
  limit_req_zone $binary_remote_addr zone=clients:10m rate={rate};\n  limit_req_status 429;\n\
  upstream service {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}\n\
  server {{\n    listen {target} backlog=4096;\n    keepalive_requests 1000000000;\n    keepalive_timeout 300s;\n\
    location / {{\n      limit_req zone=clients burst={burst} nodelay;\n      proxy_pass http://service;\n\
      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_set_header Host $host;\n\
      proxy_set_header X-Real-IP $remote_addr;\n      proxy_set_header X-Forwarded-For $remote_addr;\n\
      proxy_set_header X-Forwarded-Proto $scheme;\n    }}\n  }}\n}}\n"
        );
        let file = self.file("nginx.conf", &text)?;
        let arguments = ["-c", &file, "-e", "/dev/null"].map(str::to_owned);
        Process::start(Path::new("nginx"), &arguments, Core::Measured, self.target)
    }

    fn haproxy(&self, width: Width, upstream: SocketAddr, most_clients: usize) -> Result<Process, Failure> {
        let most: u32 = match width {
            Width::Wide => 1_000_000_000,
            Width::Narrow => 5,
        };
        let target = self.target;
        let text = format!(
            "global\n  nbthread 1\n  no strict-limits\n  maxconn {most_clients}\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 300s\n\
  timeout server 60s\n  timeout http-keep-alive 300s\n  option forwardfor\n  http-reuse always\n\
frontend public\n  bind {target} backlog 4096\n  stick-table type ip size 100k expire 60s store http_req_rate(10s)\n\
  http-request track-sc0 src\n  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {most} }}\n\
  default_backend service\nbackend service\n  server one {upstream} pool-max-conn 128\n"
        );
        let file = self.file("haproxy.cfg", &text)?;
        Process::start(Path::new("haproxy"), &["-db".into(), "-f".into(), file], Core::Measured, self.target)
    }

    fn envoy(&self, program: &Path, width: Width, upstream: SocketAddr) -> Result<Process, Failure> {
        let (most, refill) = match width {
            Width::Wide => (1_000_000_000, "1s"),
            Width::Narrow => (5, "3600s"),
        };
        let text = ENVOY
            .replace("{most}", &most.to_string())
            .replace("{refill}", refill)
            .replace("{port}", &self.target.port().to_string())
            .replace("{upstream}", &upstream.port().to_string());
        let file = self.file("envoy.yaml", &text)?;
        let arguments = [
            "-c",
            &file,
            "--concurrency",
            "1",
            "--use-dynamic-base-id",
            "--disable-hot-restart",
            "-l",
            "error",
        ];
        Process::start(program, &arguments.map(str::to_owned), Core::Measured, self.target)
    }
}

const fn limits(width: Width) -> &'static str {
    match width {
        Width::Wide => "limits:\n  - {name: per-client, by: [ip], rate: 1000000/s}\n",
        Width::Narrow => "limits:\n  - {name: per-client, by: [ip], rate: 5/h}\n",
    }
}

const ENVOY: &str = r#"
static_resources:
  listeners:
    - name: public
      address: { socket_address: { address: 127.0.0.1, port_value: {port} } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: public
                use_remote_address: true
                generate_request_id: false
                route_config:
                  virtual_hosts:
                    - name: service
                      domains: ["*"]
                      routes: [{ match: { prefix: / }, route: { cluster: service } }]
                http_filters:
                  - name: envoy.filters.http.local_ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
                      stat_prefix: limited
                      token_bucket: { max_tokens: {most}, tokens_per_fill: {most}, fill_interval: {refill} }
                      filter_enabled: { default_value: { numerator: 100, denominator: HUNDRED } }
                      filter_enforced: { default_value: { numerator: 100, denominator: HUNDRED } }
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: service
      connect_timeout: 1s
      load_assignment:
        cluster_name: service
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: {upstream} } } }
"#;
