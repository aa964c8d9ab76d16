//! A DNS client and a DNS server.

use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, Question, RCODE, ResourceRecord, TYPE, rdata::RData};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::UdpSocket, task::JoinHandle};

/// Time that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The response code.
    pub code: RCODE,
    /// The records, as text: addresses, targets, `port target`; in order.
    pub records: Vec<String>,
}

impl Answer {
    /// The name exists and has these records.
    pub fn of(records: &[&str]) -> Self {
        Self {
            code: RCODE::NoError,
            records: records.iter().map(ToString::to_string).collect(),
        }
    }

    /// The name does not exist.
    pub fn no_name() -> Self {
        Self {
            code: RCODE::NameError,
            records: Vec::new(),
        }
    }
}

/// Asks the server at `server` for records of a name, over UDP.
///
/// # Errors
/// The server does not answer, or its answer cannot be parsed.
pub async fn ask(server: SocketAddr, kind: TYPE, name: &str) -> Result<Answer, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{kind:?} {name}: {error}");
    let mut query = Packet::new_query(1);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    let query_name = Name::new(name).map_err(|error| failed(&error))?;
    query
        .questions
        .push(Question::new(query_name, QTYPE::TYPE(kind), CLASS::IN.into(), false));
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .await
        .map_err(|error| failed(&error))?;
    let bytes = query.build_bytes_vec().map_err(|error| failed(&error))?;
    socket.send_to(&bytes, server).await.map_err(|error| failed(&error))?;
    let mut buffer = vec![0; 4096];
    let length = tokio::time::timeout(TIMEOUT, socket.recv(&mut buffer))
        .await
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))?;
    let packet = Packet::parse(&buffer[..length]).map_err(|error| failed(&error))?;
    let mut records: Vec<String> = packet.answers.iter().map(|record| text(&record.rdata)).collect();
    records.sort();
    Ok(Answer {
        code: packet.rcode(),
        records,
    })
}

fn text(data: &RData<'_>) -> String {
    match data {
        RData::A(a) => Ipv4Addr::from(a.address).to_string(),
        RData::AAAA(aaaa) => Ipv6Addr::from(aaaa.address).to_string(),
        RData::CNAME(name) => name.0.to_string(),
        RData::PTR(name) => name.0.to_string(),
        RData::SRV(srv) => format!("{} {}", srv.port, srv.target),
        other => format!("{other:?}"),
    }
}

/// A DNS server outside the cluster: every name has the address [`Outside::ADDRESS`]. It records the names in queries.
pub struct Outside {
    /// Where it answers.
    pub address: SocketAddr,
    asked: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl Outside {
    /// The address of all names.
    pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

    /// Starts one on this machine.
    pub async fn start() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let names = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            let mut buffer = vec![0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let Ok(query) = Packet::parse(&buffer[..length]) else {
                    continue;
                };
                let mut reply = Packet::new_reply(query.id());
                for question in &query.questions {
                    names.lock().unwrap().insert(question.qname.to_string());
                    reply.questions.push(question.clone());
                    if question.qtype == QTYPE::TYPE(TYPE::A) {
                        let data = RData::A(Self::ADDRESS.into());
                        let record = ResourceRecord::new(question.qname.clone(), CLASS::IN, 5, data);
                        reply.answers.push(record);
                    }
                }
                let _ = socket.send_to(&reply.build_bytes_vec().unwrap(), from).await;
            }
        });
        Self { address, asked, task }
    }

    /// The names in its queries.
    pub fn asked(&self) -> BTreeSet<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.task.abort();
    }
}
