#!/usr/bin/env node
// The digests of a semtrace bundle, made from the text of the standard alone.
//
//     node digest.mjs [--levels] [--tables TABLES.MD] BUNDLE
//
// BUNDLE is a ZIP file or a directory. The program holds the manifest against its own digest and each member against its
// size and digest, decodes the tables, and prints the digests that spec/identity.md defines as JSON; with --levels also the
// bytes that are hashed at each level, in hexadecimal. Exit codes: 0 all as the manifest states, 1 the bundle is not as the
// standard has it, 2 wrong usage. Numbers of tables and columns are read from spec/tables.md.
//
// It computes identities; it is not a checker of traces.

import { closeSync, fstatSync, lstatSync, openSync, readFileSync, readSync, readdirSync } from "node:fs";
import { endianness } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { blake3 } from "@noble/hashes/blake3.js";
import { CompressionType, compressionRegistry, RecordBatchReader } from "apache-arrow";
import { Decompress } from "fzstd";

const MANIFEST = "semtrace.json";
const MIB = 2 ** 20;
const MANIFEST_LIMIT = 64 * MIB;
const MEMBER_COUNT_LIMIT = 100_000;
const FOLDER_LIMIT = 8;
const EXECUTION_TABLES = ["instances", "events"];

/** The bundle is not as the standard has it. */
class Refused extends Error {
  constructor(requirement, message) {
    super(`${requirement}: ${message}`);
  }
}

// ---------------------------------------------------------------------------------------------------------------- hashing

const encoder = new TextEncoder();
const strictDecoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const written = (digest) => `blake3:${hex(digest)}`;
const plainDigest = (bytes) => blake3(bytes);
const derivedDigest = (context, bytes) => blake3(bytes, { context: encoder.encode(context) });

function concatenated(parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function u64(value) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
  return bytes;
}

// ----------------------------------------------------------------------------------------------------------- declarations

/**
 * Tables by name, from spec/tables.md: `{name, number, of: "trace" | "execution", columns}`, columns in the order of their
 * numbers, each `{name, number, typeByte, arrowType, nullable, level}`.
 */
function declaredTables(text) {
  const types = new Map();
  const tables = new Map();
  let of = null;
  let table = null;
  for (const line of text.split("\n")) {
    const cells = line.split("|").map((cell) => cell.trim());
    const heading = /^## Tables of an? (trace|execution)$/.exec(line);
    const name = /^### (\w+)$/.exec(line);
    const number = /^Table (\d+);/.exec(line);
    if (heading) of = heading[1];
    else if (line.startsWith("## ")) of = table = null;
    else if (of && name) table = { name: name[1], number: null, of, columns: [] };
    else if (table && number) {
      table.number = Number(number[1]);
      tables.set(table.name, table);
    } else if (!of && cells.length === 5 && /^\d+$/.test(cells[2])) {
      types.set(cells[1], { typeByte: Number(cells[2]), arrowType: cells[3] });
    } else if (table && /^\d+$/.test(cells[1] ?? "")) {
      const [, columnNumber, column, type, nullable, , level] = cells;
      if (!types.has(type)) throw new Error(`spec/tables.md: ${table.name}.${column} has the undeclared type ${type}`);
      table.columns.push({
        name: column,
        number: Number(columnNumber),
        ...types.get(type),
        nullable: nullable === "yes",
        level,
      });
    }
  }
  for (const { columns } of tables.values()) columns.sort((a, b) => a.number - b.number);
  if (tables.size === 0) throw new Error("the page of tables has no tables; --tables names spec/tables.md");
  return tables;
}

// ------------------------------------------------------------------------------------------------------------- containers

function checkNames(names) {
  const seen = new Set();
  if (names.length > MEMBER_COUNT_LIMIT) throw new Refused("ST-BND-005", `${names.length} members`);
  for (const name of names) {
    const parts = name.split("/");
    if (name.length > 255 || !parts.every((part) => /^[A-Za-z0-9_-][A-Za-z0-9._-]*$/.test(part))) {
      throw new Refused("ST-BND-003", `a member is named ${JSON.stringify(name)}`);
    }
    if (parts.length - 1 > FOLDER_LIMIT) throw new Refused("ST-BND-005", `${name} lies too deep`);
    if (seen.has(name.toLowerCase())) throw new Refused("ST-BND-003", `two members are named ${name}, case aside`);
    seen.add(name.toLowerCase());
  }
}

/** Files below a folder by their names in the bundle. */
function directoryMembers(root) {
  const members = new Map();
  const walk = (folder, prefix) => {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      const path = join(folder, entry.name);
      const name = prefix + entry.name;
      if (entry.isDirectory()) {
        if (name.split("/").length > FOLDER_LIMIT) throw new Refused("ST-BND-005", `${name} lies too deep`);
        walk(path, `${name}/`);
      } else if (entry.isFile()) {
        members.set(name, { size: lstatSync(path).size, read: () => new Uint8Array(readFileSync(path)) });
      } else throw new Refused("ST-BND-004", `${name} is a link or a special file`);
      if (members.size > MEMBER_COUNT_LIMIT) throw new Refused("ST-BND-005", "too many members");
    }
  };
  walk(root, "");
  return members;
}

const END = 0x06054b50;
const END_LENGTH = 22;
const ZIP64_LOCATOR = 0x07064b50;
const ZIP64_LOCATOR_LENGTH = 20;
const ZIP64_END = 0x06064b50;
const ENTRY = 0x02014b50;
const ENTRY_LENGTH = 46;
const LOCAL = 0x04034b50;
const LOCAL_LENGTH = 30;
const ZIP64_EXTRA = 1;

/** Members of a ZIP file by name. Only what ST-BND-002 allows: stored, plain, not overlapping, each name once. */
function zipMembers(descriptor) {
  const size = fstatSync(descriptor).size;
  const bytesAt = (offset, length) => {
    const buffer = Buffer.alloc(length);
    if (offset < 0 || offset + length > size || readSync(descriptor, buffer, 0, length, offset) !== length) {
      throw new Refused("ST-BND-001", "the ZIP file is cut off or damaged");
    }
    return buffer;
  };
  const directory = zipDirectory(bytesAt, size);
  const members = new Map();
  const extents = [];
  let at = 0;
  for (let i = 0; i < directory.count; i += 1) {
    if (at + ENTRY_LENGTH > directory.bytes.length || directory.bytes.readUInt32LE(at) !== ENTRY) {
      throw new Refused("ST-BND-001", "the directory of the ZIP file is damaged");
    }
    const entry = zipEntry(directory.bytes, at);
    at = entry.end;
    if (members.has(entry.name)) throw new Refused("ST-BND-002", `${entry.name} stands twice in the ZIP file`);
    if (entry.method !== 0 || entry.stored !== entry.length) {
      throw new Refused("ST-BND-002", `${entry.name} is compressed`);
    }
    if (entry.flags & 0x2041) throw new Refused("ST-BND-002", `${entry.name} is encrypted`);
    const unixType = entry.madeOnUnix ? (entry.attributes >>> 16) & 0o170000 : 0;
    if (entry.name.endsWith("/") || (unixType !== 0 && unixType !== 0o100000)) {
      throw new Refused("ST-BND-002", `${entry.name} is not a plain file`);
    }
    const local = bytesAt(entry.offset, LOCAL_LENGTH);
    const nameLength = local.readUInt16LE(26);
    const start = entry.offset + LOCAL_LENGTH + nameLength + local.readUInt16LE(28);
    const localName = bytesAt(entry.offset + LOCAL_LENGTH, nameLength).toString("latin1");
    if (local.readUInt32LE(0) !== LOCAL || localName !== entry.name || local.readUInt16LE(8) !== 0) {
      throw new Refused("ST-BND-002", `${entry.name} is not where the ZIP file's directory says, or not as it says`);
    }
    extents.push({ name: entry.name, from: entry.offset, to: start + entry.length });
    members.set(entry.name, { size: entry.length, read: () => new Uint8Array(bytesAt(start, entry.length)) });
  }
  extents.push({ name: "the directory of the ZIP file", from: directory.offset, to: size });
  extents.sort((a, b) => a.from - b.from);
  for (let i = 1; i < extents.length; i += 1) {
    if (extents[i - 1].to > extents[i].from) {
      throw new Refused("ST-BND-002", `${extents[i - 1].name} overlaps ${extents[i].name}`);
    }
  }
  return members;
}

function zipDirectory(bytesAt, size) {
  const tailLength = Math.min(size, END_LENGTH + 0xffff);
  const tail = bytesAt(size - tailLength, tailLength);
  for (let at = tailLength - END_LENGTH; at >= 0; at -= 1) {
    if (tail.readUInt32LE(at) !== END || at + END_LENGTH + tail.readUInt16LE(at + 20) !== tailLength) continue;
    const end = size - tailLength + at;
    let count = tail.readUInt16LE(at + 10);
    let length = tail.readUInt32LE(at + 12);
    let offset = tail.readUInt32LE(at + 16);
    if (count === 0xffff || length === 0xffffffff || offset === 0xffffffff) {
      const locator = bytesAt(end - ZIP64_LOCATOR_LENGTH, ZIP64_LOCATOR_LENGTH);
      if (locator.readUInt32LE(0) === ZIP64_LOCATOR) {
        const record = bytesAt(Number(locator.readBigUInt64LE(8)), 56);
        if (record.readUInt32LE(0) !== ZIP64_END) throw new Refused("ST-BND-001", "the ZIP64 record is damaged");
        count = Number(record.readBigUInt64LE(32));
        length = Number(record.readBigUInt64LE(40));
        offset = Number(record.readBigUInt64LE(48));
      }
    }
    if (count > MEMBER_COUNT_LIMIT) throw new Refused("ST-BND-005", `${count} members`);
    if (offset + length > end) throw new Refused("ST-BND-001", "the directory of the ZIP file is damaged");
    return { count, offset, bytes: bytesAt(offset, length) };
  }
  throw new Refused("ST-BND-001", "neither a directory nor a ZIP file");
}

/** One entry of a ZIP file's directory, which begins at `at`. */
function zipEntry(bytes, at) {
  const nameEnd = at + ENTRY_LENGTH + bytes.readUInt16LE(at + 28);
  const extraEnd = nameEnd + bytes.readUInt16LE(at + 30);
  const end = extraEnd + bytes.readUInt16LE(at + 32);
  if (end > bytes.length) throw new Refused("ST-BND-001", "the directory of the ZIP file is damaged");
  const entry = {
    name: bytes.subarray(at + ENTRY_LENGTH, nameEnd).toString("latin1"),
    madeOnUnix: bytes.readUInt8(at + 5) === 3,
    flags: bytes.readUInt16LE(at + 8),
    method: bytes.readUInt16LE(at + 10),
    attributes: bytes.readUInt32LE(at + 38),
    end,
  };
  const wide = [];
  for (let extra = nameEnd; extra + 4 <= extraEnd; extra += 4 + bytes.readUInt16LE(extra + 2)) {
    if (bytes.readUInt16LE(extra) !== ZIP64_EXTRA) continue;
    const stop = Math.min(extra + 4 + bytes.readUInt16LE(extra + 2), extraEnd);
    for (let value = extra + 4; value + 8 <= stop; value += 8) wide.push(Number(bytes.readBigUInt64LE(value)));
  }
  const number = (place) => {
    const value = bytes.readUInt32LE(at + place);
    return value === 0xffffffff && wide.length > 0 ? wide.shift() : value;
  };
  // The order in which values that do not fit stand in the extra field.
  entry.length = number(24);
  entry.stored = number(20);
  entry.offset = number(42);
  return entry;
}

function openBundle(path) {
  const status = lstatSync(path);
  if (status.isDirectory()) return { members: directoryMembers(path), close: () => {} };
  const descriptor = openSync(path, "r");
  return { members: zipMembers(descriptor), close: () => closeSync(descriptor) };
}

// --------------------------------------------------------------------------------------------------------------- manifest

/** RFC 8785. Its numbers and strings are those that JSON.stringify writes; its keys are in the order of UTF-16 code units. */
function canonicalJson(value) {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const members = Object.keys(value).sort();
    return `{${members.map((key) => `${canonicalJson(key)}:${canonicalJson(value[key])}`).join(",")}}`;
  }
  if (typeof value === "string" && !value.isWellFormed()) {
    throw new Refused("ST-BND-010", "the manifest has half a surrogate pair");
  }
  return JSON.stringify(value);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function readManifest(members) {
  const member = members.get(MANIFEST);
  if (!member) throw new Refused("ST-BND-001", `no member ${MANIFEST}`);
  if (member.size > MANIFEST_LIMIT) throw new Refused("ST-BND-005", "the manifest is too large");
  const bytes = member.read();
  let manifest;
  try {
    manifest = JSON.parse(strictDecoder.decode(bytes));
  } catch (error) {
    throw new Refused("ST-BND-010", `the manifest is not JSON: ${error.message}`);
  }
  // A key that stands twice does not survive this either.
  if (!isObject(manifest) || Buffer.compare(bytes, encoder.encode(canonicalJson(manifest))) !== 0) {
    throw new Refused("ST-BND-010", "the manifest is not an object in RFC 8785 form");
  }
  const { digest, ...rest } = manifest;
  const computed = written(plainDigest(encoder.encode(canonicalJson(rest))));
  if (digest !== computed) {
    throw new Refused("ST-BND-011", `the manifest states the digest ${digest} of itself, which is ${computed}`);
  }
  if (manifest.format !== "semtrace") throw new Refused("ST-BND-010", "the format is not semtrace");
  if (!String(manifest.spec_version).startsWith("1.")) {
    throw new Refused("ST-EVO-001", `the bundle is of version ${manifest.spec_version}, this reader of version 1`);
  }
  const required = manifest.required_features ?? [];
  if (required.length > 0) throw new Refused("ST-EVO-002", `required and not known here: ${required.join(", ")}`);
  return manifest;
}

/** The trace and the executions of a manifest: `{name, stated}` each; the trace has the name null. */
function holdersOf(manifest) {
  const holders = Object.entries(manifest.executions ?? {}).map(([name, stated]) => ({ name, stated }));
  if (manifest.trace != null) holders.unshift({ name: null, stated: manifest.trace });
  return holders;
}

/** Every member is named once, and has the size and digest that the manifest states. */
function checkMembers(manifest, members) {
  const named = new Set([MANIFEST]);
  for (const { stated } of holdersOf(manifest)) {
    for (const { path, bytes: size, digest } of [...Object.values(stated.tables ?? {}), ...(stated.packs ?? [])]) {
      if (named.has(path)) throw new Refused("ST-BND-014", `the manifest names ${path} twice`);
      named.add(path);
      const member = members.get(path);
      if (!member) throw new Refused("ST-BND-012", `no member ${path}`);
      if (member.size !== size) throw new Refused("ST-BND-012", `${path} has ${member.size} bytes, not ${size}`);
      const computed = written(plainDigest(member.read()));
      if (digest !== computed) throw new Refused("ST-BND-012", `${path} has the digest ${computed}, not ${digest}`);
    }
  }
  for (const name of members.keys()) {
    if (!named.has(name)) throw new Refused("ST-BND-013", `the manifest does not name ${name}`);
  }
}

// ------------------------------------------------------------------------------------------------------------------ Arrow

/** What the member that is being read may still decompress to, in bytes (ST-BND-021). */
let budget = 0;

function take(bytes) {
  budget -= bytes;
  if (budget < 0) throw new Refused("ST-BND-021", "a member decompresses to more than the standard allows");
}

function zstdDecoded(bytes) {
  const parts = [];
  new Decompress((part) => {
    take(part.length);
    parts.push(part);
  }).push(bytes, true);
  return concatenated(parts);
}

/** The content of an LZ4 frame; blocks can refer to those before them. */
function lz4Decoded(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (view.getUint32(0, true) !== 0x184d2204) throw new Error("not an LZ4 frame");
  const flags = bytes[4];
  const blockChecksums = (flags & 0x10) !== 0;
  let at = 7 + (flags & 0x08 ? 8 : 0) + (flags & 0x01 ? 4 : 0);
  let output = new Uint8Array(Math.max(64, 4 * bytes.length));
  let length = 0;
  const reserve = (more) => {
    take(more);
    if (length + more <= output.length) return;
    const larger = new Uint8Array(Math.max(2 * output.length, length + more));
    larger.set(output);
    output = larger;
  };
  const literals = (from, count) => {
    if (from + count > bytes.length) throw new Error("the LZ4 block is cut off");
    reserve(count);
    output.set(bytes.subarray(from, from + count), length);
    length += count;
    return from + count;
  };
  for (;;) {
    const header = view.getUint32(at, true);
    at += 4;
    if (header === 0) return output.subarray(0, length);
    const end = at + (header & 0x7fffffff);
    if (header & 0x80000000) at = literals(at, end - at);
    while (at < end) {
      const token = view.getUint8(at++);
      const extended = (count) => {
        if (count < 15) return count;
        for (;;) {
          const more = view.getUint8(at++);
          count += more;
          if (more !== 255) return count;
        }
      };
      const literalCount = extended(token >> 4); // moves on to where the literals begin
      at = literals(at, literalCount);
      if (at >= end) break;
      const distance = view.getUint16(at, true);
      at += 2;
      const count = extended(token & 15) + 4;
      if (distance === 0 || distance > length) throw new Error("the LZ4 block refers to what is before its begin");
      reserve(count);
      for (let i = 0; i < count; i += 1, length += 1) output[length] = output[length - distance];
    }
    if (at !== end) throw new Error("the LZ4 block is damaged");
    if (blockChecksums) at += 4;
  }
}

compressionRegistry.set(CompressionType.ZSTD, { decode: zstdDecoded });
compressionRegistry.set(CompressionType.LZ4_FRAME, { decode: lz4Decoded });

const ARROW_NAMES = new Map([
  ["Uint8", "uint8"],
  ["Uint32", "uint32"],
  ["Uint64", "uint64"],
  ["Int64", "int64"],
  ["Utf8", "string"],
  ["FixedSizeBinary[32]", "fixed_size_binary[32]"],
]);

/** The batches of an Arrow IPC file, and its schema. */
function arrowBatches(path, bytes) {
  const magic = Buffer.from("ARROW1");
  if (Buffer.compare(bytes.subarray(0, 6), magic) !== 0 || Buffer.compare(bytes.subarray(-6), magic) !== 0) {
    throw new Refused("ST-BND-020", `${path} is not an Arrow IPC file`);
  }
  budget = Math.min(16 * 1024 * MIB, Math.max(1024 * MIB, 1000 * bytes.length));
  try {
    const reader = RecordBatchReader.from(bytes).open();
    if (reader.numDictionaries > 0) throw new Refused("ST-BND-020", `${path} has dictionaries`);
    return { schema: reader.schema, batches: [...reader].filter((batch) => batch.numRows > 0) };
  } catch (error) {
    if (error instanceof Refused) throw error;
    throw new Refused("ST-BND-020", `${path} is a damaged Arrow IPC file: ${error.message}`);
  }
}

/** A table of the bundle: its rows, and by name the pieces of each column that is there. */
function readTable(table, stated, members) {
  const { path, rows } = stated;
  const { schema, batches } = arrowBatches(path, members.get(path).read());
  const found = batches.reduce((sum, batch) => sum + batch.numRows, 0);
  if (found !== rows) throw new Refused("ST-BND-012", `${path} has ${found} rows, not ${rows}`);
  const pieces = new Map();
  for (const [place, field] of schema.fields.entries()) {
    const column = table.columns.find(({ name }) => name === field.name);
    const type = ARROW_NAMES.get(String(field.type));
    if (!column) throw new Refused("ST-TAB-002", `${table.name} has the undeclared column ${field.name}`);
    if (pieces.has(field.name)) throw new Refused("ST-TAB-002", `${table.name} has the column ${field.name} twice`);
    if (type !== column.arrowType) {
      throw new Refused("ST-TAB-002", `${table.name}.${column.name} is of type ${field.type}, not ${column.arrowType}`);
    }
    pieces.set(
      field.name,
      batches.map((batch) => batch.data.children[place]),
    );
  }
  const missing = table.columns.find(({ name, nullable }) => !nullable && !pieces.has(name));
  if (missing) throw new Refused("ST-TAB-002", `${table.name} has no column ${missing.name}`);
  return { rows, pieces };
}

// -------------------------------------------------------------------------------------------------------- canonical bytes

/** For each row of a piece 1 if it is not null, else 0. */
function validRows(name, piece) {
  const valid = new Uint8Array(piece.length).fill(1);
  const bitmap = piece.nullBitmap;
  if (!bitmap || bitmap.length === 0) return valid;
  if (8 * bitmap.length < piece.offset + piece.length) throw new Refused("ST-BND-020", `${name} has too few null bits`);
  for (let i = 0; i < piece.length; i += 1) {
    const bit = piece.offset + i;
    valid[i] = (bitmap[bit >> 3] >> (bit & 7)) & 1;
  }
  return valid;
}

/** The values of a piece of fixed width, a null as zero bytes. Integers are never converted: their bytes are copied. */
function fixedValues(name, piece, valid) {
  const width = piece.type.byteWidth ?? piece.type.bitWidth / 8;
  const { buffer, byteOffset, byteLength } = piece.values;
  const values = new Uint8Array(buffer, byteOffset, byteLength).slice(0, width * piece.length);
  if (values.length !== width * piece.length) throw new Refused("ST-BND-020", `${name} has too few values`);
  for (let i = 0; i < piece.length; i += 1) if (!valid[i]) values.fill(0, width * i, width * (i + 1));
  return values;
}

/** The lengths (u32 each) and the texts of a piece; a null has length 0 and no text, whatever lies under it. */
function textValues(name, piece, valid) {
  const lengths = new Uint8Array(4 * piece.length);
  const view = new DataView(lengths.buffer);
  const texts = [];
  const { valueOffsets: offsets, values } = piece;
  if (offsets.length < piece.length + 1) throw new Refused("ST-BND-020", `${name} has too few offsets`);
  for (let i = 0; i < piece.length; i += 1) {
    const [from, to] = [offsets[i], offsets[i + 1]];
    if (from < 0 || to < from || to > values.length) throw new Refused("ST-BND-020", `${name} has a wrong offset`);
    if (!valid[i]) continue;
    const text = values.subarray(from, to);
    try {
      strictDecoder.decode(text);
    } catch {
      throw new Refused("ST-TAB-005", `${name} has a text that is not UTF-8`);
    }
    view.setUint32(4 * i, text.length, true);
    texts.push(text);
  }
  return { lengths, text: concatenated(texts) };
}

/** The canonical bytes of a column; null if the column is null in every row. */
function columnBytes(table, column, { rows, pieces: ofTable }) {
  const name = `${table.name}.${column.name}`;
  const pieces = ofTable.get(column.name);
  if (!pieces) return null;
  const valid = pieces.map((piece) => validRows(name, piece));
  const all = concatenated(valid);
  const hasNulls = all.includes(0);
  if (hasNulls && !column.nullable) throw new Refused("ST-TAB-003", `${name} has a null`);
  if (!all.includes(1)) return null;
  const parts = [Uint8Array.of(column.number, column.typeByte), u64(rows), Uint8Array.of(hasNulls ? 1 : 0)];
  if (hasNulls) {
    const bits = new Uint8Array(Math.ceil(rows / 8));
    all.forEach((value, i) => (bits[i >> 3] |= value << (i & 7)));
    parts.push(bits);
  }
  if (column.arrowType === "string") {
    const values = pieces.map((piece, i) => textValues(name, piece, valid[i]));
    parts.push(...values.map(({ lengths }) => lengths), ...values.map(({ text }) => text));
  } else parts.push(...pieces.map((piece, i) => fixedValues(name, piece, valid[i])));
  return concatenated(parts);
}

/** The tables of a trace or an execution, and what was hashed of them. */
class Hashed {
  #declared;
  #stated;
  #members;
  #digests = new Map();
  levels = { columns: [], tables: [], roots: [] };

  constructor(declared, stated, members) {
    this.#declared = declared;
    this.#stated = stated;
    this.#members = members;
    for (const name of Object.keys(stated)) {
      if (!declared.some((table) => table.name === name)) throw new Refused("ST-TAB-001", `there is no table ${name} here`);
    }
  }

  /** Rows of a table and the digests of its columns that are not null in every row, by number; of all digest levels. */
  #columns(table) {
    if (!this.#digests.has(table.name)) {
      const digests = new Map();
      const content = readTable(table, this.#stated[table.name], this.#members);
      for (const column of table.columns) {
        const bytes = columnBytes(table, column, content);
        if (column.level === "none" || bytes === null) continue;
        const digest = derivedDigest("semtrace v1 column", bytes);
        digests.set(column.number, digest);
        this.levels.columns.push({ table: table.name, column: column.name, bytes: hex(bytes), digest: written(digest) });
      }
      this.#digests.set(table.name, { rows: content.rows, digests });
    }
    return this.#digests.get(table.name);
  }

  #table(table, chosen) {
    const { rows, digests } = this.#columns(table);
    const parts = [Uint8Array.of(table.number), u64(rows)];
    for (const { number, level } of table.columns) {
      if (chosen.includes(level) && digests.has(number)) parts.push(Uint8Array.of(number), digests.get(number));
    }
    const bytes = concatenated(parts);
    const digest = derivedDigest("semtrace v1 table", bytes);
    this.levels.tables.push({ table: table.name, levels: chosen, bytes: hex(bytes), digest: written(digest) });
    return digest;
  }

  /** The digest, in this context, of those of the tables named that are there. */
  root(digestName, context, names, chosen) {
    const parts = [];
    for (const table of [...this.#declared].sort((a, b) => a.number - b.number)) {
      const stated = this.#stated[table.name];
      if (!stated || !names.includes(table.name)) continue;
      if (this.#columns(table).rows === 0 || !table.columns.some(({ level }) => chosen.includes(level))) continue;
      parts.push(Uint8Array.of(table.number), this.#table(table, chosen));
    }
    const bytes = concatenated(parts);
    const digest = written(derivedDigest(context, bytes));
    this.levels.roots.push({ name: digestName, context, bytes: hex(bytes), digest });
    return digest;
  }
}

// ---------------------------------------------------------------------------------------------------------------- program

function traceDigests(declared, stated, members) {
  const tables = [...declared.values()].filter(({ of }) => of === "trace");
  const names = tables.map(({ name }) => name);
  const hashed = new Hashed(tables, stated.tables ?? {}, members);
  return {
    digests: {
      work_digest: hashed.root("work_digest", "semtrace v1 work", names, ["work"]),
      trace_digest: hashed.root("trace_digest", "semtrace v1 trace", names, ["work", "trace"]),
    },
    levels: hashed.levels,
  };
}

function executionDigests(declared, stated, members) {
  const tables = [...declared.values()].filter(({ of }) => of === "execution");
  const hashed = new Hashed(tables, stated.tables ?? {}, members);
  const context = "semtrace v1 execution";
  const digests = { execution_digest: hashed.root("execution_digest", context, EXECUTION_TABLES, ["run"]), detail_digests: {} };
  const recorded = [...(stated.header?.detail ?? []), ...Object.keys(stated.detail_digests ?? {})];
  const details = tables.map(({ name }) => name).filter((name) => !EXECUTION_TABLES.includes(name));
  const unknown = recorded.find((name) => !details.includes(name));
  if (unknown !== undefined) throw new Refused("ST-EXE-009", `${unknown} is no detail table`);
  for (const name of details.filter((detail) => recorded.includes(detail))) {
    digests.detail_digests[name] = hashed.root(`detail_digests.${name}`, context, [name], ["run"]);
  }
  return { digests, levels: hashed.levels };
}

/** What a manifest states otherwise than it was computed, each in words. */
function disagreements(where, stated, digests) {
  return Object.entries(digests).flatMap(([name, computed]) => {
    if (isObject(computed)) return disagreements(`${where}: ${name}`, stated[name] ?? {}, computed);
    if (stated[name] === computed) return [];
    return [`ST-DIG-014: ${where}: ${name} is stated as ${stated[name]} and is ${computed}`];
  });
}

function digestsOf(path, declared, withLevels) {
  const { members, close } = openBundle(path);
  try {
    checkNames([...members.keys()]);
    const manifest = readManifest(members);
    checkMembers(manifest, members);
    const answer = { manifest_digest: manifest.digest };
    const wrong = [];
    for (const { name, stated } of holdersOf(manifest)) {
      const compute = name === null ? traceDigests : executionDigests;
      const { digests, levels } = compute(declared, stated, members);
      wrong.push(...disagreements(name === null ? "trace" : `execution ${name}`, stated, digests));
      const shown = withLevels ? { ...digests, levels } : digests;
      if (name === null) answer.trace = shown;
      else (answer.executions ??= {})[name] = shown;
    }
    return { answer, wrong };
  } finally {
    close();
  }
}

function main() {
  let options;
  try {
    options = parseArgs({
      options: { levels: { type: "boolean", default: false }, tables: { type: "string" } },
      allowPositionals: true,
    });
    if (options.positionals.length !== 1) throw new Error("name one bundle");
  } catch (error) {
    console.error(`${error.message}\nusage: node digest.mjs [--levels] [--tables TABLES.MD] BUNDLE`);
    return 2;
  }
  if (endianness() !== "LE") {
    console.error("this program copies the bytes of integers, so it runs on little-endian machines only");
    return 2;
  }
  try {
    const page = options.values.tables ?? fileURLToPath(new URL("../tables.md", import.meta.url));
    const declared = declaredTables(readFileSync(page, "utf-8"));
    const { answer, wrong } = digestsOf(options.positionals[0], declared, options.values.levels);
    console.log(JSON.stringify(answer, null, 2));
    wrong.forEach((line) => console.error(line));
    return wrong.length === 0 ? 0 : 1;
  } catch (error) {
    console.error(error.message);
    return 1;
  }
}

process.exitCode = main();
