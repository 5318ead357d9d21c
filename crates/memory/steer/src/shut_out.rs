//! Request of a store's metadata service to its box to shut a client out. A request has eight bytes, on the TCP
//! connection on which the queue pair was set up. The box answers with the same bytes once the client's requests can no
//! longer change the node's memory.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use doorbell_exchange::setup::Timed;
use doorbell_wire::Qpn;

/// First bytes of a request.
const MAGIC: [u8; 4] = *b"OUT?";

/// Length of a request, and of the answer, in bytes.
pub(crate) const BYTES: usize = 8;

fn question(qpn: Qpn) -> [u8; BYTES] {
    let [a, b, c, d] = MAGIC;
    let [e, f, g, h] = qpn.get().to_be_bytes();
    [a, b, c, d, e, f, g, h]
}

/// Returns the queue pair number in a request: the queue pair of the box to which the client sends. Returns `None` for
/// other bytes.
pub(crate) fn parse(bytes: [u8; BYTES]) -> Option<Qpn> {
    let (magic, number) = bytes.split_first_chunk::<4>()?;
    let number = u32::from_be_bytes(*number.first_chunk::<4>()?);
    (*magic == MAGIC && number < 1 << 24).then(|| Qpn::new(number))
}

/// Asks the box at the other end of `stream` to shut a client out, and waits for the answer.
///
/// # Errors
///
/// The box does not answer within the deadline, or has ended.
pub fn ask(stream: &TcpStream, qpn: Qpn, deadline: Duration) -> io::Result<()> {
    let (question, mut answer) = (question(qpn), [0; BYTES]);
    let mut timed = Timed::new(stream, deadline);
    timed.write_all(&question)?;
    timed.read_exact(&mut answer)?;
    if answer == question { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_shut_out_names_a_queue_pair() {
        let qpn = Qpn::new(0x12_3456);
        assert_eq!(parse(question(qpn)), Some(qpn));
        assert_eq!(parse(*b"OUT?\x01\0\0\0"), None, "queue pair numbers have 24 bits");
        assert_eq!(parse(*b"OUT!\0\0\0\x05"), None);
    }
}
