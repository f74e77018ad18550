//! Chooses among the servers that an address names. They are tried in turn, and one that does not answer is
//! skipped, whether its machine is silent or the server on it.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use deadpool_postgres::Connect;
use semel_store::random;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};

use crate::address::{Last, servers};
use crate::connect::PATIENCE;
use crate::tls::Tls;

/// How long one of several servers may take to accept a connection and log in, unless the address says so by
/// `connect_timeout`.
const HOST_MAX: Duration = Duration::from_secs(5);

/// A connection, which does something only while it is polled.
type Wire = Connection<Socket, <Tls as MakeTlsConnect<Socket>>::Stream>;

/// The servers that an address names.
pub struct Hosts {
    /// The configuration for each.
    each: Vec<Config>,
    tls: Tls,
    patience: Duration,
    /// The index of the last used server, shared by all that connect by the same address.
    last: Last,
}

impl Hosts {
    /// Creates it from the servers that `config` names.
    pub fn of(config: &Config, tls: Tls, last: Last) -> Self {
        let said = config.get_connect_timeout().copied();
        let mut config = config.clone();
        config.connect_timeout(said.unwrap_or(PATIENCE));
        let number = servers(&config);
        let is_even = |count: usize| count == 0 || count == number;
        let has_ports = config.get_ports().len() <= 1 || config.get_ports().len() == number;
        let each = if is_even(config.get_hosts().len()) && is_even(config.get_hostaddrs().len()) && has_ports
        {
            (0..number).map(|place| alone(&config, place)).collect()
        } else {
            // The client will say what is wrong when it connects.
            vec![config]
        };
        Self { each, tls, patience: said.unwrap_or(HOST_MAX), last }
    }

    /// How long opening a connection may take in all.
    pub fn patience(&self) -> Duration {
        let others = u32::try_from(self.each.len().saturating_sub(1)).unwrap_or(u32::MAX);
        self.patience.saturating_mul(others).saturating_add(self.patience.max(PATIENCE))
    }

    /// Connects to the first server that accepts the login and is of the wanted kind. The last attempt has no
    /// bound here: it may take what is left of the caller's [`patience`](Self::patience).
    ///
    /// # Errors
    /// The error of the last server.
    pub async fn open(&self) -> Result<(Client, Wire), Error> {
        let order = self.each.iter().enumerate().cycle().skip(self.first()).take(self.each.len());
        let mut turns = order.peekable();
        while let Some((place, config)) = turns.next() {
            let opening = config.connect(self.tls.clone());
            let opened = if turns.peek().is_none() {
                opening.await?
            } else {
                let Ok(Ok(opened)) = timeout(self.patience, opening).await else { continue };
                opened
            };
            self.last.0.store(place, Ordering::Relaxed);
            return Ok(opened);
        }
        // Without any host, the client returns an error.
        Config::new().connect(self.tls.clone()).await
    }

    /// The index of the server to try first: a random one if the address asks for that by
    /// `load_balance_hosts`, otherwise the last used one.
    fn first(&self) -> usize {
        match self.each.first().map(Config::get_load_balance_hosts) {
            Some(LoadBalanceHosts::Random) => {
                usize::try_from(random::number() >> u32::BITS).unwrap_or(0) % self.each.len()
            }
            _ => self.last.0.load(Ordering::Relaxed),
        }
    }
}

impl Connect for Hosts {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(async move {
            let (client, connection) = self.open().await?;
            let talking = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::warn!(%error, "a connection to the database has ended");
                }
            });
            Ok((client, talking))
        })
    }
}

/// Reduces a configuration to one of its servers: given several, the client would stay with one that does not
/// answer.
fn alone(config: &Config, place: usize) -> Config {
    let mut alone = Config::new();
    if let Some(user) = config.get_user() {
        alone.user(user);
    }
    if let Some(password) = config.get_password() {
        alone.password(password);
    }
    if let Some(name) = config.get_dbname() {
        alone.dbname(name);
    }
    if let Some(options) = config.get_options() {
        alone.options(options);
    }
    if let Some(name) = config.get_application_name() {
        alone.application_name(name);
    }
    match config.get_hosts().get(place) {
        Some(Host::Tcp(name)) => {
            alone.host(name.as_str());
        }
        #[cfg(unix)]
        Some(Host::Unix(path)) => {
            alone.host_path(path);
        }
        None => {}
    }
    if let Some(address) = config.get_hostaddrs().get(place) {
        alone.hostaddr(*address);
    }
    if let Some(port) = config.get_ports().get(place).or_else(|| config.get_ports().first()) {
        alone.port(*port);
    }
    if let Some(timeout) = config.get_connect_timeout() {
        alone.connect_timeout(*timeout);
    }
    if let Some(timeout) = config.get_tcp_user_timeout() {
        alone.tcp_user_timeout(*timeout);
    }
    alone.keepalives(config.get_keepalives()).keepalives_idle(config.get_keepalives_idle());
    if let Some(interval) = config.get_keepalives_interval() {
        alone.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        alone.keepalives_retries(retries);
    }
    alone
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    alone
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering;

    use tokio_postgres::Config;

    use super::{Hosts, alone};
    use crate::address::Address;
    use crate::tls::Tls;

    #[test]
    fn one_alone_is_connected_to_as_among_others() {
        let text = |hosts: &str, ports: &str| {
            format!(
                "host={hosts} port={ports} user=ada password=p dbname=shop options='-c a=b' application_name=x \
                 sslmode=require connect_timeout=3 tcp_user_timeout=7 keepalives=0 keepalives_idle=9 \
                 keepalives_interval=4 keepalives_retries=2 target_session_attrs=read-write \
                 channel_binding=disable load_balance_hosts=random"
            )
        };
        let all: Config = text("one,/run/other", "5432,6543").parse().unwrap();
        for (place, host, port) in [(0, "one", "5432"), (1, "/run/other", "6543")] {
            let expected: Config = text(host, port).parse().unwrap();
            assert_eq!(alone(&all, place), expected);
        }
    }

    /// A check of where an address leads begins with the server in use, and not with one that was left.
    #[test]
    fn all_who_have_an_address_begin_with_the_server_that_was_spoken_to_last() {
        let parsed = || Address::parse("postgres://one,other/shop").unwrap();
        let hosts =
            |address: &Address| Hosts::of(&address.config, Tls::new(address).unwrap(), address.last.clone());
        let address = parsed();
        hosts(&address).last.0.store(1, Ordering::Relaxed);
        assert_eq!(hosts(&address.with_option("a=b")).first(), 1);
        assert_eq!(hosts(&parsed()).first(), 0, "it is somebody else's");
    }

    #[test]
    fn connections_are_spread_over_all_only_where_the_address_says_so() {
        for (parameter, number) in [("", 1), ("?load_balance_hosts=random", 2)] {
            let address = Address::parse(&format!("postgres://one,other/shop{parameter}")).unwrap();
            let hosts = Hosts::of(&address.config, Tls::new(&address).unwrap(), address.last.clone());
            let firsts: BTreeSet<usize> = (0..64).map(|_| hosts.first()).collect();
            assert_eq!(firsts.len(), number, "{parameter}");
        }
    }
}
