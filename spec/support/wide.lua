-- Whether specs try all of their cases: where TIDE_WIDE is set, as by spec/deep and on a GPU. Else
-- they leave out those that others come close to, so that `make test` stays short.

return os.getenv 'TIDE_WIDE' ~= nil
