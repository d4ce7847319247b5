//! Mutations of JSON documents: subtrees are copied, moved, dropped and renamed, so that most results are still documents that a reader
//! takes far. Bytes flipped at random hardly ever are.

use serde_json::{Value, json};

/// A small generator of numbers (xorshift64*, Vigna 2016): the fuzzer's seed decides all.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides.max(1)
    }
}

/// Numbers that break arithmetic.
const NUMBERS: [i64; 24] = [
    0,
    1,
    2,
    3,
    -1,
    -2,
    7,
    8,
    12,
    13,
    16,
    64,
    -64,
    127,
    1 << 16,
    1 << 31,
    (1 << 31) - 1,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX,
    i64::MAX - 1,
    i64::MIN,
    i64::MIN + 1,
];

/// A changed document, or `None` where `text` is none.
pub fn document(text: &[u8], seed: u32) -> Option<Vec<u8>> {
    let mut root: Value = serde_json::from_slice(text).ok()?;
    let mut dice = Dice(u64::from(seed) << 1 | 1);
    for _ in 0..=dice.roll(4) {
        let donor = dice.roll(count(&root));
        let donor = nth(&mut root, donor).clone();
        let place = dice.roll(count(&root));
        change(nth(&mut root, place), donor, &mut dice);
    }
    serde_json::to_vec(&root).ok()
}

/// Number of values in the tree.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// The value at position `n` in the order of the document.
fn nth(value: &mut Value, n: usize) -> &mut Value {
    if n == 0 {
        return value;
    }
    let mut left = n - 1;
    let children: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(fields) => fields.values_mut().collect(),
        _ => unreachable!("positions are those of the count"),
    };
    for child in children {
        let size = count(child);
        if left < size {
            return nth(child, left);
        }
        left -= size;
    }
    unreachable!("positions are those of the count")
}

fn change(value: &mut Value, donor: Value, dice: &mut Dice) {
    let kind = std::mem::discriminant(value);
    match value {
        Value::Array(items) if !items.is_empty() => {
            let (at, to) = (dice.roll(items.len()), dice.roll(items.len()));
            match dice.roll(6) {
                0 => drop(items.remove(at)),
                1 => items.swap(at, to),
                2 => items.insert(to, items[at].clone()),
                3 => items[at] = donor,
                4 => items.insert(at, donor),
                _ => items.truncate(at),
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let key = fields.keys().nth(dice.roll(fields.len())).cloned().unwrap_or_default();
            match (dice.roll(4), donor) {
                (0, _) => drop(fields.remove(&key)),
                (1, Value::String(name)) => {
                    let moved = fields.remove(&key).unwrap_or_default();
                    fields.insert(name, moved);
                }
                (_, donor @ Value::Object(_)) => *value = donor,
                (_, donor) => drop(fields.insert(key, donor)),
            }
        }
        Value::Number(_) => {
            let near = value.as_i64().map_or(0, |n| n.wrapping_add(dice.roll(5) as i64 - 2));
            *value = if dice.roll(2) == 0 { json!(near) } else { json!(NUMBERS[dice.roll(NUMBERS.len())]) };
        }
        Value::Bool(truth) => *truth = !*truth,
        _ if std::mem::discriminant(&donor) == kind || dice.roll(4) == 0 => *value = donor,
        Value::String(text) if !text.is_empty() => {
            let at = dice.roll(text.chars().count());
            let digit = char::from(b'0' + dice.roll(10) as u8);
            *text = text.chars().enumerate().map(|(i, c)| if i == at { digit } else { c }).collect();
        }
        _ => *value = donor,
    }
}
