//! The ids of permits, as servers and users see them.

use std::fmt::Write;

use crate::owner::LeaseId;

/// The id of a permit: of ours the first 6 bytes of the client's uuid, the number of the permit in its hold, and the
/// lease id, both with the high byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PermitId(pub(super) [u8; 16]);

impl PermitId {
    /// Of the first permit of a hold.
    pub(super) fn first(client: &str, lease: LeaseId) -> PermitId {
        let mut id = [0; 16];
        id[..6].copy_from_slice(&client_bytes(client));
        id[8..].copy_from_slice(&lease.get().to_be_bytes());
        PermitId(id)
    }

    /// The bytes that the permits of one hold have in common.
    pub(super) fn hold(self) -> [u8; 14] {
        let mut hold = [0; 14];
        hold[..6].copy_from_slice(&self.0[..6]);
        hold[6..].copy_from_slice(&self.0[8..]);
        hold
    }

    pub(super) fn number(self) -> u16 {
        u16::from_be_bytes([self.0[6], self.0[7]])
    }

    /// As a server has it: of Redisson before 3.17, and of a client of ours that is told so, as the digits that users see.
    pub(super) fn read(member: &[u8]) -> Option<PermitId> {
        if let Ok(id) = member.try_into() {
            return Some(PermitId(id));
        }
        let digits = <&[u8; 32]>::try_from(member).ok()?;
        // Checked first, since `from_str_radix` takes a sign, and capital letters, which no client of this kind writes.
        if !digits
            .iter()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        {
            return None;
        }
        let mut id = [0; 16];
        for (byte, two) in id.iter_mut().zip(digits.chunks_exact(2)) {
            let two = std::str::from_utf8(two).ok()?;
            *byte = u8::from_str_radix(two, 16).ok()?;
        }
        Some(PermitId(id))
    }

    /// As Redisson's API shows it.
    pub(super) fn hex(self) -> String {
        hex(&self.0)
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The first 6 bytes of a uuid.
fn client_bytes(client: &str) -> [u8; 6] {
    let digits = client.split('-').flat_map(str::chars).take(12);
    let number = u64::from_str_radix(&digits.collect::<String>(), 16);
    // No uuid (a test's name for a client): FNV-1a.
    let number = number.unwrap_or_else(|_| {
        client.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    });
    // Twelve hexadecimal digits fill the lower six bytes; the hash of any other name is cut to as many.
    let [_, _, bytes @ ..] = number.to_be_bytes();
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "0123abCD-4567-4000-8000-000000000000";

    #[test]
    fn an_id_has_the_client_the_number_of_the_permit_and_the_lease() {
        let id = PermitId::first(CLIENT, LeaseId::from(0x0102_0304));
        assert_eq!(id.hex(), "0123abcd456700000000000001020304");
        assert_eq!((id.number(), id.hold().len()), (0, 14));
        for member in [&id.0[..], id.hex().as_bytes()] {
            assert_eq!(PermitId::read(member), Some(id));
        }
        for other in ["01", &"+3".repeat(16), &"AB".repeat(16)] {
            assert_eq!(PermitId::read(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn clients_whose_names_are_no_uuids_differ_all_the_same() {
        assert_ne!(client_bytes("one"), client_bytes("two"));
        assert_ne!(client_bytes("zzzzzzzzzzzz"), client_bytes("zzzzzzzzzzzy"));
    }
}
