'use strict'
// Connects with the driver that the first argument names (pg or postgres.js) and the URI in the file that the second
// argument names.
//
// Prints one line of JSON: driver, version, ok, encrypted, error.

const fs = require('fs')
const path = require('path')

const SECONDS_TO_CONNECT = 10
const QUERY = 'select current_user, (select ssl from pg_stat_ssl where pid = pg_backend_pid())'

const DRIVERS = { pg: { name: 'pg', isEncrypted: withPg }, 'postgres.js': { name: 'postgres', isEncrypted: withPostgresJs } }

async function withPg(uri) {
  const { Client } = require('pg')
  const client = new Client({ connectionString: uri, connectionTimeoutMillis: SECONDS_TO_CONNECT * 1000 })
  await client.connect()
  try {
    return (await client.query(QUERY)).rows[0].ssl
  } finally {
    await client.end()
  }
}

async function withPostgresJs(uri) {
  const sql = require('postgres')(uri, { connect_timeout: SECONDS_TO_CONNECT, max: 1 })
  try {
    return (await sql.unsafe(QUERY))[0].ssl
  } finally {
    await sql.end()
  }
}

// Returns the version of an installed package: the packages do not export their package.json.
function version(name) {
  let folder = path.dirname(require.resolve(name))
  while (!fs.existsSync(path.join(folder, 'package.json')) || manifest(folder).name !== name) {
    folder = path.dirname(folder)
  }
  return manifest(folder).version
}

function manifest(folder) {
  return JSON.parse(fs.readFileSync(path.join(folder, 'package.json'), 'utf8'))
}

async function main() {
  const [driver, file] = process.argv.slice(2)
  const { name, isEncrypted } = DRIVERS[driver]
  const report = { driver, version: version(name), ok: false, encrypted: false, error: '' }
  try {
    report.encrypted = await isEncrypted(fs.readFileSync(file, 'utf8'))
    report.ok = true
  } catch (error) {
    report.error = error.message || String(error)
  }
  console.log(JSON.stringify(report))
}

main()
