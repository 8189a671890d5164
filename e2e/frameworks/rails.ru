# Rails as it comes, in one file: its router takes a format behind every path, and its stack reads other methods and addresses.
require "logger"
require "rails"
require "action_controller/railtie"

class Service < Rails::Application
  config.eager_load = true
  config.consider_all_requests_local = false
  config.secret_key_base = "of no use"
  config.hosts.clear
  config.logger = Logger.new(File::NULL)
  routes.append { match "/login", to: "logins#login", via: :all }
end

class LoginsController < ActionController::API
  def login
    texts = request.headers.env.select { |name, _| name.start_with?("HTTP_") }.transform_values(&:to_s)
    render json: {
      handler: "login", method: request.request_method, v: Array(params[:v].respond_to?(:values) ? params[:v].values : params[:v]),
      address: request.remote_ip, host: request.host_with_port, scheme: request.scheme, said: texts,
    }
  end
end

# One request for each connection: a POST on one that Puma has just closed is answered 502, and not sent again.
class Closing
  def initialize(app)
    @app = app
  end

  def call(env)
    @app.call(env).tap { |_, headers, _| headers["Connection"] = "close" }
  end
end

Service.initialize!
use Closing
use Rack::ContentLength # The test reads bodies by their length.
run Service
